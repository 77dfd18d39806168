"""Pull the word distributions of two maskings of a text together, and push those of other texts away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from drkit.decoders import word_distribution
from drkit.losses import check_rows, find_partner
from drkit.plugin import BuildContext, StepOutput
from drkit_cpdae import JsContrastiveConfig

# Number of values in a block of mixtures: 16 MB in float32.
AT_ONCE = 2**22


class JsContrastiveLoss:
    """`- sum over rows i of log( exp(-JS(p_i, p_j) / t) / sum over k != i of exp(-JS(p_i, p_k) / t) )`, j i's partner.

    | input | shape | what |
    |---|---|---|
    | vocab_logits | f[R,V] | z, two rows per text; under data parallelism those of all processes |
    | partners | i64[R] | the row number of each row's partner |

    p = sigmoid(z) / sum_v sigmoid(z_v); JS is the Jensen-Shannon divergence with natural logarithms, between 0 and
    log 2, and t the temperature. It is a sum over the rows, as in the paper, beside a reconstruction loss that is a sum
    over V words: -JS has so narrow a range that the gradient of its mean would be lost beside it (numbers in
    docs/papers/cpdae.md).
    The weight of the sum grows with the batch; `reduction = "mean"` does not. Metrics: `accuracy`, the share of rows
    whose partner is nearest.

    Cost: R^2 V / 2 logarithms, forward and again backward. Memory: a few arrays of the input's size f[R,V] (the
    distributions, their entropies or logarithms, the gradient), the divergences f[R,R], and blocks of at most
    max(V, 2^22) values; never [R,R,V].

    Source: CPDAE section 3.2.2, equation 5. Its equation 7 expands JS without the factors of 1/2: t = 0.5.
    """

    def __init__(self, config: JsContrastiveConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = JsContrastiveConfig() if config is None else config

    def __call__(self, *, vocab_logits: Tensor, partners: Tensor) -> StepOutput:
        """Return the loss of a whole batch. Raises DrkitError if the shapes do not fit."""
        check_rows(vocab_logits, partners, "js-contrastive")
        divergences = js_divergences(word_distribution(vocab_logits))
        return find_partner(-divergences / self.config.temperature, partners, self.config.reduction)


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
