"""Random weights that depend on a seed and leave the global random state unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import torch


@contextmanager
def seeded(seed: int, what: str = "weights") -> Iterator[None]:
    """Seed torch's CPU generator by `seed` and the name `what` in a block, and restore its state afterwards.

    Two parts with the same seed get different weights because their names differ.

    >>> with seeded(1, "decoder"):
    ...     first = torch.rand(2)
    >>> with seeded(1, "decoder"):
    ...     second = torch.rand(2)
    >>> torch.equal(first, second)
    True
    """
    state = torch.get_rng_state()
    stream = sha256(f"{seed}/{what}".encode()).digest()
    torch.default_generator.manual_seed(int.from_bytes(stream[:7], "little"))
    try:
        yield
    finally:
        torch.set_rng_state(state)
