"""A second forward like the first: with the same dropout, and the same precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor


def random_state() -> list[Tensor]:
    """Where the random generators stand, the processor's and the accelerator's."""
    state = [torch.get_rng_state()]
    return [*state, torch.cuda.get_rng_state()] if torch.cuda.is_available() else state


@contextmanager
def random_numbers(state: list[Tensor]) -> Iterator[None]:
    """A block that draws the numbers that followed `state`; after it the generators go on as if it had not been."""
    before = random_state()
    _set_random_state(state)
    try:
        yield
    finally:
        _set_random_state(before)


def _set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])


def precision(device: torch.device) -> partial[torch.autocast]:
    """What makes blocks in which models compute on a device as they do now: a backward runs outside of autocast.

    Casts of weights are not kept: one of a pass without gradients would stand in the way of theirs.
    """
    kind = device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return partial(torch.autocast, kind, dtype=dtype, enabled=enabled, cache_enabled=False)
