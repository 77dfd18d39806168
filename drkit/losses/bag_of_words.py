"""Predict which words a text has: from the encoder's tokens, or as a yes or no for every word of the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drkit.core.types import BuildContext, LmHeads, StepOutput, TextStates
from drkit.decoders.bow import word_mask
from drkit.errors import DrkitError
from drkit.losses.specs import BagOfWordsConfig, BowReconstructionConfig

# Number of logits held at once: 64 MB in float32, or those of one text if that is more.
AT_ONCE = 2**24


class BagOfWordsLoss:
    """`- 1/B sum_b sum_{v in text b} 1/n_b log softmax_v( max over positions 1.. of the LM head's scores )`.

    | input | shape | what |
    |---|---|---|
    | text_states.states | f[B,L,D] | the encoder's states at all positions, of its masked view |
    | text_states.tokens | | the clean text: its words, and what is padding |
    | text_states.heads | | the LM head to apply |

    Position 0 provides the bottleneck and is not scored here; [SEP] is. n_b is the number of tokens without special
    ones, so a word that occurs twice counts once and the targets of a text sum to 1 or less.

    The scores [B,L,V] are never held at once: those of a few texts (at most max(L V, 2^24) values) are computed at a
    time, and again in the backward pass. Only the maxima f[B,V] are kept.

    Source: DupMAE (Xiao et al. 2023), section 3.3, with the targets and positions of the authors' code.
    """

    def __init__(self, config: BagOfWordsConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = BagOfWordsConfig() if config is None else config

    def __call__(self, *, text_states: TextStates) -> StepOutput:
        """Return the loss of a batch."""
        tokens = text_states.tokens
        peaks = highest_scores(text_states.states, tokens.attention, text_states.heads)
        exact = peaks.to(torch.promote_types(peaks.dtype, torch.float32))
        words = word_mask(tokens, exact.shape[1])
        shares = words / tokens.maskable.sum(1, keepdim=True).clamp(min=1)
        loss = -(shares.to(exact.dtype) * exact.log_softmax(1)).sum() / max(1, len(words))
        return StepOutput(loss=loss)


def highest_scores(states: Tensor, attention: Tensor, heads: LmHeads) -> Tensor:
    """Return every word's best score over the positions 1.. without padding, f[B,V]; attention bool[B,L]."""
    size = max(1, AT_ONCE // (states.shape[1] * len(heads.weight)))
    parts = [
        checkpoint(_highest, states[at : at + size, 1:], attention[at : at + size, 1:], heads, use_reentrant=False)
        for at in range(0, len(states), size)
    ]
    return torch.cat(parts)


def _highest(states: Tensor, attention: Tensor, heads: LmHeads) -> Any:
    scores = heads.logits(states)
    # In place: neither the projection nor the maximum needs the original scores.
    return scores.masked_fill_(~attention[:, :, None], torch.finfo(scores.dtype).min).max(1).values


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


def _idf(context: BuildContext | None) -> Tensor:
    if context is None or "idf" not in context.signals:
        raise DrkitError(
            "bow-reconstruction with idf = true needs BuildContext.signals['idf'], f32[V]. In a run the signal idf "
            "provides it; in your own loop, compute it with document_frequencies() and idf() of drkit.signals.idf"
        )
    given: Tensor = context.signals["idf"]
    return given.detach().clone()
