"""Poolings of hidden states without settings, as parts: modules from states and attention to vectors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from drkit.encoders.pooling import pool


class _StatePooling(nn.Module):
    """A pooling of `drkit.encoders.pooling.POOLINGS`, by its name."""

    name: str

    def __init__(self, _config: Any, _context: Any) -> None:
        super().__init__()

    def forward(self, hidden: Tensor, attention: Tensor) -> Tensor:
        """Return the vectors f[B,D] of hidden states f[B,L,D] under attention [B,L] (0: padding)."""
        return pool(hidden, attention, self.name)


class FirstToken(_StatePooling):
    """The last hidden state of the first token, [CLS]."""

    name = "cls"


class Mean(_StatePooling):
    """The mean over all tokens, special ones included."""

    name = "mean"


class WeightedMean(_StatePooling):
    """The mean weighted by weights of tokens f[B,L], which are given as attention."""

    name = "weighted"


class Largest(_StatePooling):
    """The largest value of each dimension over all tokens."""

    name = "max"


class LastToken(_StatePooling):
    """The last hidden state of the last token, [SEP] in most encoders."""

    name = "last"
