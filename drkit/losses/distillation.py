"""Learn from a teacher: its distribution over each query's own passages, or its margins between them."""

from __future__ import annotations

import torch
from torch import Tensor

from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.losses.candidates import accuracy, copies, mean_over, own_passages, own_scores, teacher_scores
from drkit.losses.contrastive import contrast
from drkit.losses.specs import KlDistillationConfig, MarginMseConfig


class KlDistillationLoss:
    """The mean over queries of sum over own passages p of P(p) log( P(p) / S(p) ), plus alpha x contrastive.

    | input | shape | what |
    |---|---|---|
    | pairs.queries, passages, positives | f[Q,D], f[P,D], i64[Q] | as `ContrastiveLoss` takes them |
    | pairs.groups | i64[Q,G] | rows of each query's own passages, its positive first, padded with -1 |
    | column `teacher` | f[Q,G] | T, a teacher's scores of those; NaN: unscored |
    | pairs.candidates, numbers, sharing | or None | as `ContrastiveLoss` takes them |

    P = softmax(T / teacher_temperature) and S = softmax(s / temperature) over the passages of the group that the
    teacher scored, without second copies and judged positives other than the query's own. A query with fewer than two
    is left out of the divergence, not of the contrast. The contrastive loss is `ContrastiveLoss` with the
    same similarity, temperature and directions; with `mask_hard_negatives` a query's own negatives are not in it.
    Metrics: `accuracy`, the share of queries whose positive scores above its own negatives (above all candidates:
    `contrastive_accuracy`); `kl` and `contrastive`, the two losses; `unscored`, how many queries are left out.

    Source: SimLM (Wang et al. 2023), equation 5 and the sum after it; alpha and the mask as in its public code.

    >>> import torch
    >>> from drkit.core.types import EmbeddedPairs
    >>> queries, passages = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> pairs = EmbeddedPairs(
    ...     queries=queries,
    ...     passages=passages,
    ...     positives=torch.tensor([0]),
    ...     groups=torch.tensor([[0, 1]]),
    ...     columns={"teacher": torch.tensor([[3.0, 3.0]])},
    ... )
    >>> out = KlDistillationLoss(KlDistillationConfig(temperature=1.0, alpha=0.0))(pairs=pairs)
    >>> round(out.loss.item(), 4)  # log((1 + e) / 2) - 1 / 2
    0.1201
    """

    def __init__(self, config: KlDistillationConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = KlDistillationConfig() if config is None else config

    def __call__(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if the shapes do not fit, or without groups or teacher."""
        kept = own_passages(pairs)
        teacher, scored = teacher_scores(pairs)
        scores = own_scores(pairs, self.config.similarity, self.config.temperature)
        compared = kept & scored
        is_learned = compared.sum(1) > 1
        kl = mean_over(divergence(teacher / self.config.teacher_temperature, scores, compared), is_learned)
        metrics = {"accuracy": accuracy(scores, kept), "kl": kl.detach(), "unscored": (~is_learned).sum().float()}
        if not self.config.alpha:
            return StepOutput(loss=kl, metrics=metrics)
        without = {"query-passage": own_negatives(pairs)} if self.config.mask_hard_negatives else {}
        contrastive, found = contrast(pairs, self.config, without)
        metrics |= {"contrastive": contrastive.detach(), "contrastive_accuracy": found}
        return StepOutput(loss=kl + self.config.alpha * contrastive, metrics=metrics)


def divergence(teacher: Tensor, student: Tensor, kept: Tensor) -> Tensor:
    """Return KL(softmax(teacher) || softmax(student)) f[Q] over the kept (bool[Q,G]) of scores f[Q,G]."""
    # The lowest finite number, not -inf, keeps a row without passages and its gradient finite.
    expected, actual = (
        s.masked_fill(~kept, torch.finfo(s.dtype).min).log_softmax(1) for s in (teacher.to(student.dtype), student)
    )
    return torch.where(kept, expected.exp() * (expected - actual), 0).sum(1)


def own_negatives(pairs: EmbeddedPairs) -> Tensor:
    """Return the negatives in each query's own group, and their copies, bool[Q,P]."""
    assert pairs.groups is not None
    numbers = copies(pairs)
    negatives = pairs.groups[:, 1:]
    named = numbers[negatives.clamp(min=0)].masked_fill(negatives < 0, -1)
    found = torch.zeros(len(negatives), len(numbers), dtype=torch.bool, device=numbers.device)
    for column in named.unbind(1):
        found |= column[:, None] == numbers
    return found


class MarginMseLoss:
    """The mean over queries q and their own negatives p- of ( (s(q,p+) - s(q,p-)) / t - (T(q,p+) - T(q,p-)) )^2.

    | input | shape | what |
    |---|---|---|
    | pairs.queries, passages | f[Q,D], f[P,D] | vectors |
    | pairs.groups | i64[Q,G] | rows of each query's own passages, its positive first, padded with -1 |
    | column `teacher` | f[Q,G] | T, a teacher's scores of those; NaN: unscored |
    | pairs.candidates, numbers | bool[Q,P], i64[P], or None | allowed negatives; copies of one passage |

    s is dot product or cosine, t the student's temperature. A negative counts if the teacher scored it and its
    positive; a judged positive or a second copy among the negatives does not count. Metrics: `accuracy`, the share of
    queries whose positive scores above all of its negatives; `unscored`, how many queries have no margin to learn.

    Source: Hofstaetter et al. 2020, equation 7.

    >>> import torch
    >>> from drkit.core.types import EmbeddedPairs
    >>> queries, passages = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    >>> pairs = EmbeddedPairs(
    ...     queries=queries,
    ...     passages=passages,
    ...     positives=torch.tensor([0]),
    ...     groups=torch.tensor([[0, 1, 2]]),
    ...     columns={"teacher": torch.tensor([[9.0, 5.0, 7.0]])},
    ... )
    >>> MarginMseLoss()(pairs=pairs).loss.item()  # ((1 - 4)^2 + (2 - 2)^2) / 2
    4.5
    """

    def __init__(self, config: MarginMseConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = MarginMseConfig() if config is None else config

    def __call__(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if the shapes do not fit, or without groups or teacher."""
        kept = own_passages(pairs)
        teacher, scored = teacher_scores(pairs)
        scores = own_scores(pairs, self.config.similarity, self.config.temperature)
        is_learned = (kept & scored & scored[:, :1])[:, 1:]
        errors = (scores[:, :1] - scores[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])
        metrics = {"accuracy": accuracy(scores, kept), "unscored": (~is_learned.any(1)).sum().float()}
        return StepOutput(loss=mean_over(errors.square(), is_learned), metrics=metrics)
