"""Drawing the same random numbers twice: a second forward has the dropout of the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
