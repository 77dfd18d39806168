"""How fast a training is: tokens a second, whenever it logs its loss."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from drkit.train.gradients import world_size

TOKENS_PER_SECOND = "tokens_per_second"


@runtime_checkable
class MarksTokens(Protocol):
    """A module that names the tensors of a batch, bool[..], that are True at each token that its encoder reads."""

    marks: Sequence[str]


class Meter:
    """Counts the tokens of batches, without padding, and the time that steps take.

    The clock runs from `start`, before a batch is fetched, to `stop`, after its step: time for probes, checkpoints and
    mining is left out. marks: see `MarksTokens`.
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = tuple(marks)
        self._tokens, self._seconds, self._started = 0, 0.0, 0.0

    def start(self) -> None:
        """Start the clock."""
        self._started = time.perf_counter()

    def stop(self, *, wait: bool) -> None:
        """Stop the clock; wait: until the GPU has finished the work that it was given."""
        if wait and torch.cuda.is_available():
            torch.cuda.synchronize()
        self._seconds += time.perf_counter() - self._started

    def count(self, tensors: Mapping[str, Tensor]) -> None:
        """Count the tokens of a batch that is still in the memory of the host."""
        self._tokens += sum(int(tensors[name].sum()) for name in self._marks if name in tensors)

    def read(self) -> dict[str, float]:
        """Return the tokens a second of all processes, and begin to count again."""
        tokens, seconds = torch.tensor(self._tokens, dtype=torch.float64), self._seconds
        self._tokens, self._seconds = 0, 0.0
        if not self._marks or seconds <= 0:
            return {}
        if world_size() > 1:
            tokens = tokens.to("cuda" if dist.get_backend() == "nccl" else "cpu")
            dist.all_reduce(tokens)
        return {TOKENS_PER_SECOND: round(float(tokens) / seconds, 1)}
