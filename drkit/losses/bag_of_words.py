"""Predict which words a text has: yes or no for every word of the vocabulary, or one softmax over all of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drkit.core.spec import NoSettings
from drkit.core.types import BuildContext, StepOutput
from drkit.errors import DrkitError
from drkit.losses.specs import BowReconstructionConfig


class BowReconstructionLoss(nn.Module):
    """Binary cross-entropy, summed over the vocabulary and averaged over the texts.

    `L = - 1/B sum_b sum_v idf_v [ y_bv log s(z_bv) + (1 - y_bv) log(1 - s(z_bv)) ]`, s the sigmoid; idf_v = 1 unless
    the setting `idf` is on.

    | input | shape | what |
    |---|---|---|
    | vocab_logits | f[B,V] | z, a score for every word |
    | words | bool[B,V] | y, which words occur in the unmasked text |

    Special tokens do not count as words: y is 0 for them, and they stay in the sum as words that never occur. If they
    were left out, their probability would stay at its initial value and distort the word distribution.
    Metrics: `recall`, the share of the words of all texts with a probability above 1/2.

    Source: CPDAE section 3.2.1, equation 4 (printed without the `1 -` of the second logarithm); `idf` is IDF-REC of
    its table 2. Raises DrkitError if `idf` is on and the context has none, or has it for another vocabulary.

    >>> loss = BowReconstructionLoss()
    >>> words = torch.tensor([[True, False]])
    >>> round(loss(vocab_logits=torch.zeros(1, 2), words=words).loss.item(), 4)  # 2 log 2
    1.3863
    """

    idf: Tensor | None

    def __init__(self, config: BowReconstructionConfig | None = None, context: BuildContext | None = None) -> None:
        super().__init__()
        self.config = BowReconstructionConfig() if config is None else config
        self.register_buffer("idf", _idf(context) if self.config.idf else None, persistent=False)

    def forward(self, *, vocab_logits: Tensor, words: Tensor) -> StepOutput:
        """Return the loss of a batch. Raises DrkitError if the shapes do not fit."""
        if vocab_logits.ndim != 2 or vocab_logits.shape != words.shape:
            raise DrkitError(
                f"bow-reconstruction expects vocab_logits and words [B,V], got {tuple(vocab_logits.shape)} and "
                f"{tuple(words.shape)}"
            )
        if self.idf is not None and len(self.idf) != words.shape[1]:
            raise DrkitError(f"idf has {len(self.idf)} words, expected {words.shape[1]} as in vocab_logits")
        exact = vocab_logits.to(torch.promote_types(vocab_logits.dtype, torch.float32))
        weight = None if self.idf is None else self.idf.to(exact.dtype)
        summed = F.binary_cross_entropy_with_logits(exact, words.to(exact.dtype), weight=weight, reduction="sum")
        recall = ((exact > 0) & words).sum() / words.sum().clamp(min=1)
        return StepOutput(loss=summed / max(1, len(words)), metrics={"recall": recall})

    def accuracy(self, *, vocab_logits: Tensor, words: Tensor) -> tuple[float, float]:
        """Return how many of each text's n words are among its n best-scored (R-precision), and the number of words."""
        return _words_found(vocab_logits, words)


class BagOfTokensLoss:
    """`- 1/B sum_b 1/n_b sum_{v in text b} log softmax_v(z_b)`, n_b the number of different words of a text.

    | input | shape | what |
    |---|---|---|
    | vocab_logits | f[B,V] | z, a score for every word |
    | words | bool[B,V] | which words occur in the text to rebuild |

    Texts without words are left out of the mean. Metrics: `recall`, the share of the words of all texts among the n_b
    best-scored ones.

    Source: LLARA (Li et al. 2023), EBAE and EBAR, with the targets of the authors' code: each word once.

    >>> loss = BagOfTokensLoss()
    >>> words = torch.tensor([[True, True, False, False]])
    >>> round(loss(vocab_logits=torch.zeros(1, 4), words=words).loss.item(), 4)  # log 4
    1.3863
    """

    def __init__(self, _config: NoSettings | None = None, _context: BuildContext | None = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def __call__(self, *, vocab_logits: Tensor, words: Tensor) -> StepOutput:
        """Return the loss of a batch."""
        exact = vocab_logits.to(torch.promote_types(vocab_logits.dtype, torch.float32))
        shares = words / words.sum(1, keepdim=True).clamp(min=1)
        summed = -(shares.to(exact.dtype) * exact.log_softmax(1)).sum()
        found, count = _words_found(exact.detach(), words)
        recall = torch.tensor(found / max(count, 1), device=exact.device)
        items = self.items(vocab_logits=vocab_logits, words=words)
        return StepOutput(loss=summed / items.clamp(min=1), metrics={"recall": recall})

    def items(self, *, vocab_logits: Tensor, words: Tensor) -> Tensor:  # noqa: ARG002
        """Return the number of texts that have words, i64[]."""
        return words.any(1).sum()

    def accuracy(self, *, vocab_logits: Tensor, words: Tensor) -> tuple[float, float]:
        """Return how many of each text's n words are among its n best-scored (R-precision), and the number of words."""
        return _words_found(vocab_logits, words)


def _words_found(vocab_logits: Tensor, words: Tensor) -> tuple[float, float]:
    """Return how many of each text's n words are among its n best-scored, and the number of words."""
    counts = words.sum(1)
    best = vocab_logits.topk(max(int(counts.max()), 1), dim=1).indices
    is_within = torch.arange(best.shape[1], device=best.device) < counts[:, None]
    return float((words.gather(1, best) & is_within).sum()), float(counts.sum())


def _idf(context: BuildContext | None) -> Tensor:
    if context is None or "idf" not in context.signals:
        raise DrkitError(
            "bow-reconstruction with idf = true needs BuildContext.signals['idf'], f32[V]. In a run the signal idf "
            "provides it; in your own loop, compute it with document_frequencies() and idf() of drkit.signals.idf"
        )
    given: Tensor = context.signals["idf"]
    return given.detach().clone()
