"""Random weights that follow a seed and leave the global random state alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A block whose CPU draws follow `seed`; after it the global generator is as before.

    >>> with seeded(1):
    ...     first = torch.rand(2)
    >>> with seeded(1):
    ...     second = torch.rand(2)
    >>> torch.equal(first, second)
    True
    """
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)
