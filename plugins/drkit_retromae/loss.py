"""Predict which words a text has from the encoder's states at its tokens (DupMAE)."""

from __future__ import annotations

import torch
from torch import Tensor

from drkit.decoders import word_mask
from drkit.plugin import BuildContext, LmHeads, NoSettings, StepOutput, TextStates, highest_logits, pool_logits

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

    def __init__(self, _config: NoSettings | None = None, _context: BuildContext | None = None) -> None:
        """Ignore the settings and the context that every part is built with."""

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
    return pool_logits(states[:, 1:], attention[:, 1:], heads, highest_logits, at_once=AT_ONCE)
