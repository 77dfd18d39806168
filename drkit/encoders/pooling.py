"""Pooling: how the hidden states of a text become one vector, by name. No torch at import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from torch import Tensor


@frozen
class Pooling:
    """One way of pooling.

    pool: hidden f[B,L,D], attention [B,L] (1 or True: a real token) -> f[B,D]. saved_as: its name in the Pooling module
    of sentence-transformers.
    """

    pool: Callable[[Tensor, Tensor], Tensor]
    saved_as: str


def first_token(hidden: Tensor, _attention: Tensor) -> Tensor:
    """Return the last hidden state of the first token, [CLS]."""
    return hidden[:, 0]


def mean_over_tokens(hidden: Tensor, attention: Tensor) -> Tensor:
    """Return the mean over all real tokens, special ones included, as sentence-transformers does."""
    real = attention.unsqueeze(-1).to(hidden.dtype)
    return (hidden * real).sum(1) / real.sum(1).clamp(min=1e-9)


# The only list of supported poolings: options, checks and messages are made from it.
POOLINGS: Mapping[str, Pooling] = {
    "cls": Pooling(first_token, saved_as="cls"),
    "mean": Pooling(mean_over_tokens, saved_as="mean"),
}


def check_pooling(name: str, where: str = "") -> str:
    """Return the name of a supported pooling. Raises DrkitError for any other, with `where` before it."""
    if name not in POOLINGS:
        prefix = f"{where}: " if where else ""
        raise DrkitError(f"{prefix}unsupported pooling {name!r}; supported: {', '.join(POOLINGS)}")
    return name


def pool(hidden: Tensor, attention: Tensor, pooling: str) -> Tensor:
    """Pool hidden states f[B,L,D] under attention [B,L] to f[B,D]. Raises DrkitError for an unknown pooling."""
    return POOLINGS[check_pooling(pooling)].pool(hidden, attention)
