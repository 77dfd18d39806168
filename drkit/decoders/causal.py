"""What a decoder from left to right may see, and what it is to tell: shared by the autoregressive decoders.

Position 0 holds the bottleneck and tells x_1; position i holds x_i and tells x_{i+1}.
"""

from __future__ import annotations

import torch
from torch import Tensor

from drkit.core.types import TokenBatch


def next_tokens(tokens: TokenBatch, end_token: bool) -> Tensor:
    """i64[B,L]: at each position the token after it where that is a target, else -100.

    Targets are the maskable tokens of the clean text and, with `end_token`, its last token ([SEP]).
    """
    wanted = tokens.maskable
    if end_token:
        lengths = tokens.attention.sum(1, keepdim=True)
        last = torch.arange(tokens.ids.shape[1], device=lengths.device) == lengths - 1
        wanted = wanted | last
    following = tokens.ids.masked_fill(~wanted, -100).roll(-1, 1)
    following[:, -1] = -100
    return following


def causal_visibility(attention: Tensor, window: int) -> Tensor:
    """bool[B,L,L]: position i sees position 0 (the bottleneck) and the last `window` positions, itself among them.

    attention bool[B,L]; window 0: all positions up to i.

    >>> causal_visibility(torch.ones(1, 5, dtype=torch.bool), 2)[0].int().tolist()
    [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]
    """
    places = torch.arange(attention.shape[1], device=attention.device)
    back = places[:, None] - places
    sees = (back >= 0) & (back < window) if window else back >= 0
    # Rows of padding see the bottleneck too: a row that sees nothing would send NaN into the gradient.
    return (sees & attention[:, None]) | (places == 0)
