"""Random weights that follow a seed and leave the global random state alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import torch


@contextmanager
def seeded(seed: int, what: str = "weights") -> Iterator[None]:
    """A block whose CPU draws follow `seed` and `what` is drawn; after it the global generator is as before.

    Two parts with one seed get different weights because their names differ.

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
