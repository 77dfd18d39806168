"""Which examples make up each batch of a training: decided before it starts, from the seed alone; and batches in words.

Examples of similar length share a batch (little padding, few shapes), except where a loss compares the examples of a
batch: those of a bi-encoder, which are each other's negatives, and texts of a contrast (`schedule_lengths`). Every
epoch is another permutation. A batch lists (epoch, example) pairs, so the collator's random draws depend on nothing
else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core import processes
from drkit.core.quantities import counted
from drkit.errors import DrkitError
from drkit.recipe.schema import Training

if TYPE_CHECKING:
    from torch import Tensor


# (epoch, example)
Example = tuple[int, int]
# Examples are sorted by length within pools of this many batches: little padding, and the order stays random.
POOL = 50


@frozen(eq=False)
class Schedule:
    """All batches of a training, as a batch sampler.

    lengths: i32[n], tokens of each example. rates: f64[n], how often an epoch reads each example, at most once (None:
    every one once); others every epoch, but always as many. Each epoch drops the examples that do not fill a batch
    (others every epoch), unless there are fewer examples than one batch.
    """

    lengths: NDArray[np.int32]
    batch_size: int
    batches: int
    seed: int
    rates: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls,
        training: Training,
        lengths: NDArray[np.int32],
        *,
        seed: int,
        processes: int = 1,
        rates: NDArray[np.float64] | None = None,
    ) -> Schedule:
        """Return the batches of a training on examples of these lengths i32[n]; a batch spans all processes."""
        examples = len(lengths) if rates is None else int(drawn(rates).sum())
        return cls(
            lengths=lengths,
            batch_size=training.per_device_train_batch_size * processes,
            batches=count_batches(training, examples, processes=processes),
            seed=seed,
            rates=rates,
        )

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
        """Return the share of every batch that one of several processes reads.

        Raises DrkitError if a batch has fewer examples than there are processes.
        """
        if len(self.lengths) < processes:
            raise DrkitError(
                f"{len(self.lengths)} training examples for {processes} processes: each process needs at least one "
                f"example per batch. Start fewer processes."
            )
        if self.batch_size < processes:  # of a run that fewer processes began
            raise DrkitError(
                f"batches of {self.batch_size} examples for {processes} processes: each process needs at least one "
                f"example per batch, and a run keeps the batches it began with. Start at most {self.batch_size} "
                f"processes, or a new run with another --run-dir."
            )
        return Share(self, rank, processes)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of one epoch, each an array of example indices."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))
        if self.rates is not None:
            order = order[drawn(self.rates[order])]
        size = min(self.batch_size, len(order))
        # What fills no batch is left out before sorting: afterwards it would always be the longest examples.
        order = order[: len(order) // size * size]
        pools = [order[start : start + size * POOL] for start in range(0, len(order), size * POOL)]
        batches = [
            pool[start : start + size]
            for pool in (pool[np.argsort(self.lengths[pool], kind="stable")] for pool in pools)
            for start in range(0, len(pool), size)
        ]
        return [batches[index] for index in rng.permutation(len(batches))]


def drawn(rates: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which examples are drawn, bool[n], at rates f64[n] of at most 1: as many as the rates add up to, rounded.

    Systematic sampling: an example is drawn where the sum of the rates so far passes the next whole number.

    >>> drawn(np.array([1, 0, 0.5, 0.5, 1.0])).tolist()
    [True, False, True, False, True]
    """
    sums = np.floor(np.cumsum(rates) + 0.5)
    return np.diff(sums, prepend=0) > 0


@frozen(eq=False)
class Share:
    """One process' share of every batch: every n-th example, so that lengths are similar in all processes."""

    schedule: Schedule
    rank: int
    processes: int

    def __len__(self) -> int:
        return len(self.schedule)

    def __iter__(self) -> Iterator[list[Example]]:
        return (batch[self.rank :: self.processes] for batch in self.schedule)


@frozen(eq=False)
class SubsetCollator:
    """A collator over a subset of examples: example i of the schedule is example `indices[i]` of `collate`."""

    collate: Callable[[list[Example]], Mapping[str, Tensor]]
    indices: NDArray[np.int64]

    def __call__(self, examples: Sequence[Example]) -> Mapping[str, Tensor]:
        """Return the batch of `collate` for these examples of the subset."""
        return self.collate([(epoch, int(self.indices[example])) for epoch, example in examples])


def batches_per_epoch(examples: int, batch_size: int) -> int:
    """Return the number of full batches in an epoch, at least 1.

    >>> batches_per_epoch(40, 16), batches_per_epoch(5, 16)
    (2, 1)
    """
    return max(examples // batch_size, 1)


def count_batches(training: Training, examples: int, *, processes: int = 1) -> int:
    """Return the number of batches of a training: the steps of `max_steps` or `num_train_epochs`, times accumulation.

    A batch spans all processes.
    """
    per_step = training.gradient_accumulation_steps
    if training.max_steps > 0:
        return training.max_steps * per_step
    per_epoch = batches_per_epoch(examples, training.per_device_train_batch_size * processes)
    return max(math.ceil(training.num_train_epochs * per_epoch / per_step), 1) * per_step


def query_counts(queries: int, training: Training) -> dict[str, int]:
    """Return the numbers of training queries, of the processes that batches are made for, and of queries of each.

    `queries_per_batch` and `queries_per_step` are those of all processes together.
    """
    shared = processes.batch_processes()
    per_batch = min(training.per_device_train_batch_size * shared, queries)
    return {
        "training_queries": queries,
        "processes": shared,
        "queries_per_batch": per_batch,
        "queries_per_step": per_batch * training.gradient_accumulation_steps,
    }


def passage_counts(mined: Sequence[NDArray[np.int64]], most: int, queries: int) -> tuple[float, float]:
    """Return the mean number of negatives that a query draws, and of passages in a batch of `queries`.

    mined: one array per query, of which a batch has up to `most` passages.
    """
    hard = float(np.array([min(len(negatives), most) for negatives in mined]).mean())
    return hard, queries * (1 + hard)


def describe_batch(effective: Mapping[str, Any]) -> str:
    """Return an effective batch in one line."""
    return (
        f"{counted(effective['training_queries'], 'training query')}, {effective['queries_per_batch']:,} per batch; "
        f"negatives per query: {effective['negatives_per_query']:,}, including "
        f"{effective['hard_negatives_per_query']:g} mined for the query"
    )
