"""The pooling `lexical`: a text as scores of the words of the vocabulary, by the LM head (SPLADE, DupMAE)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drkit.core.types import BuildContext, LmHeads
from drkit.encoders.heads import highest_logits, pool_logits
from drkit.encoders.pooling import LexicalConfig, pool


class LexicalPooling(nn.Module):
    """`w_v = max over positions i of log(1 + relu(z_iv))`, or their sum; z are the LM head's scores of word v at i.

    | input | shape | what |
    |---|---|---|
    | hidden | f[B,L,D] | the last hidden states |
    | attention | [B,L] | 0: padding; the positions of special tokens count, as in SPLADE |
    | heads | | the LM head to apply |

    Returns f[B,V]: no number is negative, and training makes most of them 0 (loss `flops`). `top_k` keeps only the
    largest of each text. With `dense`, a pooling of the hidden states, it returns f[B,D+V]: that vector, then the
    scores; a product of two is the sum of both products. Memory: f[B,V], and the scores of a few texts at a time
    (`pool_logits`).

    Source: Formal et al. 2021 (SPLADE v2), equations 1 and 6; `top_k` and the sum are those of DupMAE (Xiao et al.
    2023), section 3.4.
    """

    def __init__(self, config: LexicalConfig, context: BuildContext) -> None:
        super().__init__()
        assert context.backbone is not None
        self.config = config
        self.dense_dimension = context.backbone.hidden if config.dense else 0
        self.dimension = self.dense_dimension + context.backbone.vocab

    def forward(self, hidden: Tensor, attention: Tensor, heads: LmHeads) -> Tensor:
        """Return the scores f[B,V] of the words in texts, with `dense` after their vectors f[B,D]."""
        if self.config.over_positions == "max":
            scores = saturated(pool_logits(hidden, attention, heads, highest_logits))
        else:
            scores = pool_logits(hidden, attention, heads, summed)
        if self.config.top_k:
            scores = keep_largest(scores, self.config.top_k)
        if not self.config.dense:
            return scores
        return torch.cat([pool(hidden, attention, self.config.dense).to(scores.dtype), scores], dim=1)


def saturated(logits: Tensor) -> Tensor:
    """Return log(1 + relu(logits)), of any shape."""
    return logits.relu().log1p()


def summed(logits: Tensor, attention: Tensor) -> Tensor:
    """Return the saturated logits f[B,L,V] summed over the real positions, f[B,V]."""
    return (saturated(logits) * attention[:, :, None]).sum(1)


def keep_largest(scores: Tensor, count: int) -> Tensor:
    """Return scores f[B,V] with only the `count` largest of each row, the others 0.

    >>> keep_largest(torch.tensor([[3.0, 1.0, 2.0]]), 2)
    tensor([[3., 0., 2.]])
    """
    best = scores.topk(min(count, scores.shape[1]), dim=1)
    return torch.zeros_like(scores).scatter(1, best.indices, best.values)
