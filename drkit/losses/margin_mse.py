"""Learn a teacher's margins: how much higher than each negative it scores the positive."""

from __future__ import annotations

from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.losses.candidates import accuracy, mean_over, own_passages, own_scores, teacher_scores
from drkit.losses.specs import MarginMseConfig


class MarginMseLoss:
    """The mean over queries q and their own negatives p- of ( (s(q,p+) - s(q,p-)) / t - (T(q,p+) - T(q,p-)) )^2.

    | input | shape | what |
    |---|---|---|
    | pairs.queries, passages | f[Q,D], f[P,D] | vectors |
    | pairs.groups | i64[Q,G] | rows of each query's own passages, its positive first, padded with -1 |
    | pairs.teacher | f[Q,G] | T, a teacher's scores of those; NaN: unscored |
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
    ...     teacher=torch.tensor([[9.0, 5.0, 7.0]]),
    ... )
    >>> MarginMseLoss()(pairs=pairs).loss.item()  # ((1 - 4)^2 + (2 - 2)^2) / 2
    4.5
    """

    def __init__(self, config: MarginMseConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = MarginMseConfig() if config is None else config

    def __call__(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if the shapes do not fit, or without groups or teacher."""
        kept = own_passages(pairs)
        teacher, scored = teacher_scores(pairs, "margin-mse")
        scores = own_scores(pairs, self.config.similarity, self.config.temperature)
        is_learned = (kept & scored & scored[:, :1])[:, 1:]
        errors = (scores[:, :1] - scores[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])
        metrics = {"accuracy": accuracy(scores, kept), "unscored": (~is_learned.any(1)).sum().float()}
        return StepOutput(loss=mean_over(errors.square(), is_learned), metrics=metrics)
