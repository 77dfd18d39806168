"""Which examples make up each batch of a training: decided before it starts, from the seed alone.

Examples of like length share a batch (little padding, few shapes); every epoch is another permutation. A batch
lists (epoch, example) pairs, so that the collator's draws depend on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from drkit.recipe.schema import Training

Example = tuple[int, int]
# Batches are sorted by length within pools of this many: little padding, and order stays random.
POOL = 50


@frozen(eq=False)
class Schedule:
    """All batches of a training, as a batch sampler.

    lengths: i32[n], tokens of each example. Each epoch drops the remainder that fills no batch (another one every
    epoch), unless there are fewer examples than one batch.
    """

    lengths: NDArray[np.int32]
    batch_size: int
    batches: int
    seed: int

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[Example]]:
        left = self.batches
        epoch = 0
        while left > 0:
            for batch in self.epoch(epoch)[:left]:
                yield [(epoch, int(example)) for example in batch]
                left -= 1
            epoch += 1

    def share(self, rank: int, processes: int) -> Share:
        """The part of every batch that one of several processes takes.

        Raises DrkitError where there are fewer examples than processes.
        """
        if len(self.lengths) < processes:
            raise DrkitError(
                f"{len(self.lengths)} training examples for {processes} processes: each needs one of every batch; "
                f"start fewer processes"
            )
        return Share(self, rank, processes)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of one epoch, each an array of example numbers."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))
        size = min(self.batch_size, len(order))
        pools = [order[start : start + size * POOL] for start in range(0, len(order), size * POOL)]
        batches = [
            pool[start : start + size]
            for pool in (pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools)
            for start in range(0, len(pool) - size + 1, size)
        ]
        return [batches[place] for place in rng.permutation(len(batches))]


@frozen(eq=False)
class Share:
    """One process' part of every batch of a schedule: every n-th example, so that lengths are alike everywhere."""

    schedule: Schedule
    rank: int
    processes: int

    def __len__(self) -> int:
        return len(self.schedule)

    def __iter__(self) -> Iterator[list[Example]]:
        return (batch[self.rank :: self.processes] for batch in self.schedule)


@frozen(eq=False)
class Chosen:
    """A collator for some examples of another's: example i of a schedule is its example `places[i]`."""

    collate: Callable[[list[Example]], Mapping[str, Tensor]]
    places: NDArray[np.int64]

    def __call__(self, examples: Sequence[Example]) -> Mapping[str, Tensor]:
        """What the other collator makes of them."""
        return self.collate([(epoch, int(self.places[example])) for epoch, example in examples])


def batches_per_epoch(examples: int, batch_size: int) -> int:
    """How many batches an epoch has: the remainder is dropped, unless there are fewer examples than one batch.

    >>> batches_per_epoch(40, 16), batches_per_epoch(5, 16)
    (2, 1)
    """
    return max(examples // batch_size, 1)


def count_batches(training: Training, examples: int, *, processes: int = 1) -> int:
    """Batches of a training: `max_steps`, or what `num_train_epochs` gives, times accumulation.

    A batch is that of all processes together.
    """
    per_step = training.gradient_accumulation_steps
    if training.max_steps > 0:
        return training.max_steps * per_step
    per_epoch = batches_per_epoch(examples, training.per_device_train_batch_size * processes)
    return max(math.ceil(training.num_train_epochs * per_epoch / per_step), 1) * per_step
