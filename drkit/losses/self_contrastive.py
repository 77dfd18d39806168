"""Pull two views of a text, two spans, or a passage and its query together, and push other texts away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from drkit.core.types import BuildContext, StepOutput
from drkit.decoders.bow import word_distribution
from drkit.errors import DrkitError
from drkit.losses.specs import InfoNceConfig, JsContrastiveConfig, SpanContrastiveConfig


def find_partner(scores: Tensor, partners: Tensor, reduction: str = "mean") -> StepOutput:
    """- log( exp(s_ij) / sum over k != i of exp(s_ik) ), j the partner of i: the mean or the sum over all rows i.

    scores f[R,R], the similarity of two rows (the diagonal is ignored); partners i64[R]. Metrics: `accuracy`, the share
    of rows whose partner has the best score.

    >>> scores = torch.zeros(4, 4)
    >>> round(find_partner(scores, torch.tensor([2, 3, 0, 1])).loss.item(), 4)  # log 3
    1.0986
    """
    alone = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    others = scores.masked_fill(alone, float("-inf"))
    accuracy = (others.detach().argmax(1) == partners).float().mean()
    return StepOutput(loss=F.cross_entropy(others, partners, reduction=reduction), metrics={"accuracy": accuracy})


def products(rows: Tensor) -> Tensor:
    """Return the inner products f[R,R] of rows f[R,D], at least in float32, even under autocast."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    with torch.autocast(rows.device.type, enabled=False):
        return wide @ wide.T


def check_rows(rows: Tensor, partners: Tensor, what: str) -> None:
    """Raise DrkitError unless rows are f[R,.] and partners i64[R], R at least 2."""
    if rows.ndim != 2 or len(rows) < 2 or tuple(partners.shape) != (len(rows),):
        raise DrkitError(
            f"{what} expects rows f[R,.] and partners i64[R] with R at least 2 (two rows per text), got "
            f"{tuple(rows.shape)} and {tuple(partners.shape)}"
        )


class InfoNceLoss:
    """`- mean over rows i of log( exp(s(h_i, h_j) / t) / sum over k != i of exp(s(h_i, h_k) / t) )`, j i's partner.

    | input | shape | what |
    |---|---|---|
    | bottleneck | f[R,D] | h, two rows per text; under data parallelism those of all processes |
    | partners | i64[R] | the row number of each row's partner |

    s is cosine or dot product, t the temperature; the candidates of a row are all other rows, of both views. With
    `reduction = "sum"` the sum over rows. Memory: the scores f[R,R]. Metrics: `accuracy`, the share of rows whose
    partner has the best score.

    Source: SimCSE (Gao et al. 2021), equation 1, with the candidates of CPDAE's equation 5: its variant CPDAE_R.

    >>> import torch
    >>> h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> out = InfoNceLoss(InfoNceConfig(temperature=1.0))(bottleneck=h, partners=torch.tensor([2, 3, 0, 1]))
    >>> round(out.loss.item(), 4), out.metrics["accuracy"].item()  # log(1 + 2 / e)
    (0.5514, 1.0)
    """

    def __init__(self, config: InfoNceConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = InfoNceConfig() if config is None else config

    def __call__(self, *, bottleneck: Tensor, partners: Tensor) -> StepOutput:
        """Return the loss of a whole batch. Raises DrkitError if the shapes do not fit."""
        check_rows(bottleneck, partners, "info-nce")
        rows = bottleneck.to(torch.promote_types(bottleneck.dtype, torch.float32))
        if self.config.similarity == "cosine":
            rows = F.normalize(rows, dim=1)
        return find_partner(products(rows) / self.config.temperature, partners, self.config.reduction)


class SpanContrastiveLoss:
    """`- mean over rows i of log( exp(<h_i, h_j>) / sum over k != i of exp(<h_i, h_k>) )`, j the partner of i.

    | input | shape | what |
    |---|---|---|
    | bottleneck | f[R,D] | h, two rows per pair; under data parallelism those of all processes |
    | partners | i64[R] | the row number of each row's partner |

    Plain dot products without a temperature; every row of either side is an anchor, and all other rows are its
    candidates. Memory: the scores f[R,R]. Metrics: `accuracy`, the share of rows whose partner has the best score.
    `InfoNceLoss` adds a temperature and cosine similarity.

    Source: coCondenser (Gao and Callan 2022), its contrastive loss; Query-as-context (Wu et al. 2023), equation 5.

    >>> import torch
    >>> h = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]])
    >>> out = SpanContrastiveLoss()(bottleneck=h, partners=torch.tensor([2, 3, 0, 1]))
    >>> round(out.loss.item(), 4), out.metrics["accuracy"].item()  # log(1 + 2 / e^4)
    (0.036, 1.0)
    """

    def __init__(self, config: SpanContrastiveConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = SpanContrastiveConfig() if config is None else config

    def __call__(self, *, bottleneck: Tensor, partners: Tensor) -> StepOutput:
        """Return the loss of a whole batch. Raises DrkitError if the shapes do not fit."""
        check_rows(bottleneck, partners, "span-contrastive")
        return find_partner(products(bottleneck), partners)


# Number of values in a block of mixtures: 16 MB in float32.
AT_ONCE = 2**22


class JsContrastiveLoss:
    """`- sum over rows i of log( exp(-JS(p_i, p_j)) / sum over k != i of exp(-JS(p_i, p_k)) )`, j i's partner.

    | input | shape | what |
    |---|---|---|
    | vocab_logits | f[R,V] | z, two rows per text; under data parallelism those of all processes |
    | partners | i64[R] | the row number of each row's partner |

    p = sigmoid(z) / sum_v sigmoid(z_v); JS is the Jensen-Shannon divergence with natural logarithms, between 0 and
    log 2. It is a sum over the rows, as in the paper, beside a reconstruction loss that is a sum over V words: -JS
    has so narrow a range that the gradient of its mean would be lost beside it (numbers in docs/papers/cpdae.md).
    The weight of the sum grows with the batch; `reduction = "mean"` does not. Metrics: `accuracy`, the share of rows
    whose partner is nearest.

    Cost: R^2 V / 2 logarithms, forward and again backward. Memory: a few arrays of the input's size f[R,V] (the
    distributions, their entropies or logarithms, the gradient), the divergences f[R,R], and blocks of at most
    max(V, 2^22) values; never [R,R,V].

    Source: CPDAE section 3.2.2, equation 5.
    """

    def __init__(self, config: JsContrastiveConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = JsContrastiveConfig() if config is None else config

    def __call__(self, *, vocab_logits: Tensor, partners: Tensor) -> StepOutput:
        """Return the loss of a whole batch. Raises DrkitError if the shapes do not fit."""
        check_rows(vocab_logits, partners, "js-contrastive")
        divergences = js_divergences(word_distribution(vocab_logits))
        return find_partner(-divergences, partners, self.config.reduction)


def js_divergences(distributions: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence (natural log) of every two distributions, rows of f[R,V]: f[R,R].

    Differentiable once. For memory see `JsContrastiveLoss`.

    >>> js_divergences(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([[0.0000, 0.6931],
            [0.6931, 0.0000]])
    """
    divergences: Tensor = _Divergences.apply(distributions)  # type: ignore[no-untyped-call]
    return divergences


class _Divergences(torch.autograd.Function):
    """JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2, H the entropy, taken word by word before it is summed.

    d JS / d p_v = 1/2 log(p_v / m_v), m the mixture. The backward pass computes the mixtures again: kept, they
    would be [R,R,V].
    """

    @staticmethod
    def forward(ctx: Any, distributions: Tensor) -> Tensor:
        ctx.save_for_backward(distributions)
        halves = _log(distributions).mul_(distributions).mul_(0.5)  # (torch.special.entr is slower on CPU)
        out = distributions.new_zeros(len(distributions), len(distributions))
        for i, others in _blocks(distributions):
            mixture = _mixtures(distributions, i, others)
            # Summed first, the difference of two entropies of about 8 would lose most of its digits in float32.
            terms = _log(mixture).mul_(mixture).sub_(halves[others]).sub_(halves[i])
            out[i, others] = -terms.sum(1)
        return out + out.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (distributions,) = ctx.saved_tensors
        logs = _log(distributions)
        both = (gradient + gradient.T) / 2  # JS(p, q) is in two entries; its derivative has the factor 1/2
        out = torch.zeros_like(distributions)
        for i, others in _blocks(distributions):
            mixed = _log(_mixtures(distributions, i, others))
            weights = both[i, others]
            out[i] += weights.sum() * logs[i] - weights @ mixed
            out[others] += mixed.neg_().add_(logs[others]).mul_(weights[:, None])
        return out


def _blocks(distributions: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield every pair of different rows once: (i, rows after i), in blocks of at most AT_ONCE values."""
    rows, vocab = distributions.shape
    size = max(1, AT_ONCE // vocab)
    for i in range(rows):
        for start in range(i + 1, rows, size):
            yield i, slice(start, min(start + size, rows))


def _mixtures(distributions: Tensor, i: int, others: slice) -> Tensor:
    return distributions[others].add(distributions[i]).mul_(0.5)


def _log(values: Tensor) -> Tensor:
    """Logarithms, finite at 0: there x log x is 0, and the probability's own gradient by its score."""
    return values.clamp_min(torch.finfo(values.dtype).tiny).log_()
