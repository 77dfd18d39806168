"""Which examples make up each step of a training: decided before it starts, from the seed alone; and batches in words.

The examples of a step are drawn at random, and every epoch is another permutation, unless a part of the kind `batches`
composes the batches of fine-tuning (`PartBatches`). Where no loss compares them, they are sorted by length within the
step, so that its micro-batches need little padding. A batch lists (epoch, example) pairs, so the collator's random
draws depend on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from drkit.batching.drawing import checked_batches, random_batches
from drkit.core import processes
from drkit.core.protocols import Batches
from drkit.core.quantities import counted
from drkit.core.schedules import CollatesAtProgress
from drkit.core.types import BatchRows
from drkit.errors import DrkitError
from drkit.recipe.training import Training

if TYPE_CHECKING:
    from torch import Tensor


# (epoch, example)
Example = tuple[int, int]
_AT_ONCE = 4096


@frozen
class StepSize:
    """How the examples of an optimizer step are divided.

    batch: examples of a batch over all processes, which comparing losses compare with each other. batches: those whose
    gradients are summed in a step. processes: those that divide a batch. at_once: the most examples that a process
    reads at a time: of a larger share it reads micro-batches of equal size or, if a loss compares examples, chunks with
    cached gradients.
    """

    batch: int
    batches: int
    processes: int
    at_once: int

    @classmethod
    def of(cls, training: Training, *, compares: bool) -> StepSize:
        """Return the step of a training, by the processes of the run; compares: whether any loss compares examples."""
        shared, at_once = processes.batch_processes(), training.per_device_train_batch_size
        summed = training.gradient_accumulation_steps if training.batch_size is None else 1
        whole = training.batch_size or at_once * shared * summed
        batches = summed if compares else 1
        return cls(whole // batches, batches, shared, at_once)

    @property
    def examples(self) -> int:
        """Examples of a step, over all processes."""
        return self.batch * self.batches

    @property
    def share(self) -> int:
        """Examples of a batch in a process."""
        return math.ceil(self.batch / self.processes)

    @property
    def is_cut(self) -> bool:
        """Whether a process reads its share of a batch in several parts."""
        return self.share > self.at_once

    def __str__(self) -> str:
        """The step in words.

        >>> print(StepSize(2048, 1, 8, 32))
        2,048: 8 processes x 256, at most 32 at a time
        >>> print(StepSize(64, 4, 2, 32))
        256: 4 batches of 2 processes x 32
        >>> print(StepSize(32, 1, 1, 32))
        32
        """
        shares = f"{self.processes} processes x {self.share:,}" if self.processes > 1 else f"{self.share:,}"
        summed = f"{self.batches:,} batches of {shares}" if self.batches > 1 else shares
        parts = [summed] if self.processes > 1 or self.batches > 1 else []
        parts += [f"at most {self.at_once:,} at a time"] if self.is_cut else []
        return f"{self.examples:,}{': ' * bool(parts)}{', '.join(parts)}"


def check_step(training: Training, table: str) -> None:
    """Raise DrkitError if the batch size of a training is not a multiple of the processes, or is given twice.

    table: the training's, in the recipe.
    """
    size = training.batch_size
    if size is None:
        return
    if training.gradient_accumulation_steps > 1:
        raise DrkitError(
            f"batch_size = {size:,} already says how many examples a step has: leave out gradient_accumulation_steps "
            f"(--set {table}.gradient_accumulation_steps=1), or --set {table}.batch_size=none @ {table}.batch_size"
        )
    shared = processes.batch_processes()
    if size % shared:
        fewer = max(n for n in range(1, shared) if size % n == 0)
        raise DrkitError(
            f"batch_size = {size:,} cannot be divided over {shared} processes: set it to {_neighbours(size, shared)}, "
            f"or start {fewer} process{'es' * (fewer > 1)} @ {table}.batch_size"
        )


def _neighbours(size: int, unit: int) -> str:
    """Return the multiples of a unit below and above a size, in words."""
    below = size // unit * unit
    return f"{below:,} or {below + unit:,}" if below else f"{unit:,}"


class EpochBatches(Protocol):
    """Composes the batches of an epoch, in place of a random permutation."""

    def __call__(self, epoch: int, *, size: int, count: int) -> list[NDArray[np.int64]]:
        """Return `count` batches, each an array of 1 to `size` different examples."""


@frozen(eq=False)
class PartBatches:
    """Batches composed by a part of the kind `batches`, and checked; title: the part's, for errors."""

    part: Batches
    rows: BatchRows
    seed: int
    title: str

    def __call__(self, epoch: int, *, size: int, count: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch. Raises DrkitError as `checked_batches` does."""
        found = self.part(self.rows, size=size, count=count, seed=self.seed, epoch=epoch)
        return checked_batches(found, self.rows, size=size, count=count, title=self.title)


@frozen(eq=False)
class Schedule:
    """All batches of a training, as a batch sampler.

    lengths: i32[n], tokens of each example, which the micro-batches of a batch are sorted by. batch_size: examples of
    a batch over all processes, or all examples if there are fewer. batches: their number. per_step: batches of an
    optimizer step. parts: micro-batches of a batch, which the sampler yields one by one. rates: f64[n], how often an
    epoch reads each example, at most once (None: every one once); others every epoch, but always as many. Each epoch
    drops the examples that do not fill a batch (others every epoch). source: composes the batches, with the rest as it
    is: as many in an epoch, of at most this size.
    """

    lengths: NDArray[np.int32]
    batch_size: int
    batches: int
    seed: int
    rates: NDArray[np.float64] | None = None
    per_step: int = 1
    parts: int = 1
    source: EpochBatches | None = None

    @classmethod
    def of(
        cls,
        training: Training,
        lengths: NDArray[np.int32],
        *,
        seed: int,
        compares: bool,
        rates: NDArray[np.float64] | None = None,
        source: EpochBatches | None = None,
    ) -> Schedule:
        """Return the batches of a training on examples of these lengths i32[n]; compares: as in `StepSize`.

        Micro-batches are for the processes that there are now, even if others began the run: the steps stay the same.
        """
        examples = len(lengths) if rates is None else int(drawn(rates).sum())
        step = StepSize.of(training, compares=compares)
        parts = 1 if compares else math.ceil(min(step.batch, examples) / (processes.process_count() * step.at_once))
        return cls(
            lengths=lengths,
            batch_size=step.batch,
            batches=count_steps(training, examples, compares=compares) * step.batches,
            seed=seed,
            rates=rates,
            per_step=step.batches,
            parts=parts,
            source=source,
        )

    @cached_property
    def examples(self) -> int:
        """How many examples an epoch draws from."""
        return len(self.lengths) if self.rates is None else int(drawn(self.rates).sum())

    @property
    def micro_batches(self) -> int:
        """The micro-batches of an optimizer step."""
        return self.per_step * self.parts

    def __len__(self) -> int:
        return self.batches * self.parts

    def __iter__(self) -> Iterator[list[Example]]:
        left = self.batches
        epoch = 0
        while left > 0:
            for batch in self.epoch(epoch)[:left]:
                for part in self.divided(batch):
                    yield [(epoch, int(example)) for example in part]
                left -= 1
            epoch += 1

    def share(self, rank: int, processes: int) -> Share:
        """Return the share of every micro-batch that one of several processes reads.

        Raises DrkitError if a micro-batch has fewer examples than there are processes.
        """
        if self.examples // self.parts < processes:
            raise DrkitError(
                f"{self.examples} training examples for {processes} processes: each process needs at least one "
                f"example per batch. Start fewer processes."
            )
        if self.batch_size // self.parts < processes:  # of a run that fewer processes began
            raise DrkitError(
                f"batches of {self.batch_size} examples for {processes} processes: each process needs at least one "
                f"example per batch, and a run keeps the batches it began with. Start at most "
                f"{self.batch_size // self.parts} processes, or a new run with another --run-dir."
            )
        return Share(self, rank, processes)

    def epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of one epoch, each an array of example indices in random order."""
        if self.source is not None:
            size = min(self.batch_size, self.examples)
            return self.source(epoch, size=size, count=batches_per_epoch(self.examples, size))
        rates = self.rates
        reads = None if rates is None else lambda order: drawn(rates[order])
        return random_batches(len(self.lengths), size=self.batch_size, seed=self.seed, epoch=epoch, reads=reads)

    def all_examples(self) -> Iterator[list[Example]]:
        """Yield every example of every epoch that the batches begin, whatever their source, some at a time."""
        epochs = math.ceil(self.batches / batches_per_epoch(self.examples, self.batch_size))
        for epoch in range(epochs):
            for start in range(0, len(self.lengths), _AT_ONCE):
                yield [(epoch, row) for row in range(start, min(start + _AT_ONCE, len(self.lengths)))]

    def divided(self, batch: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the micro-batches of a batch, texts of similar length together."""
        if self.parts == 1:
            return [batch]
        return np.array_split(batch[np.argsort(self.lengths[batch], kind="stable")], self.parts)


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
    """One process' share of every micro-batch: every n-th example, so that lengths are similar in all processes."""

    schedule: Schedule
    rank: int
    processes: int

    def __len__(self) -> int:
        return len(self.schedule)

    def __iter__(self) -> Iterator[list[Example]]:
        for batch in self.schedule:
            if len(batch) < self.processes:
                raise DrkitError(
                    f"a batch of {len(batch)} examples for {self.processes} processes: each process needs at least one "
                    f"example per batch. Start fewer processes, or choose other batches."
                )
            yield batch[self.rank :: self.processes]


@frozen(eq=False)
class SubsetCollator:
    """A collator over a subset of examples: example i of the schedule is example `indices[i]` of `collate`."""

    collate: Callable[[list[Example]], Mapping[str, Tensor]]
    indices: NDArray[np.int64]

    def __call__(self, examples: Sequence[Example]) -> Mapping[str, Tensor]:
        """Return the batch of `collate` for these examples of the subset."""
        return self.collate([(epoch, int(self.indices[example])) for epoch, example in examples])

    def at_progress(self, progress: float) -> SubsetCollator:
        """Return the collator at a progress in [0, 1]."""
        collate = self.collate
        return evolve(self, collate=collate.at_progress(progress)) if isinstance(collate, CollatesAtProgress) else self


def batches_per_epoch(examples: int, batch_size: int) -> int:
    """Return the number of full batches in an epoch, at least 1.

    >>> batches_per_epoch(40, 16), batches_per_epoch(5, 16)
    (2, 1)
    """
    return max(examples // batch_size, 1)


def count_steps(training: Training, examples: int, *, compares: bool) -> int:
    """Return the optimizer steps of a training: `max_steps`, or those of `num_train_epochs`; at least 1."""
    if training.max_steps > 0:
        return training.max_steps
    step = StepSize.of(training, compares=compares)
    per_epoch = batches_per_epoch(examples, step.batch)
    return max(math.ceil(training.num_train_epochs * per_epoch / step.batches), 1)


def query_counts(queries: int, training: Training, *, compares: bool) -> dict[str, int]:
    """Return the numbers of training queries, of the processes that batches are made for, and of queries of each.

    `queries_per_batch` and `queries_per_step` are those of all processes together. compares: whether the queries of a
    batch are compared; otherwise a batch is what all processes read at a time.
    """
    step = StepSize.of(training, compares=compares)
    together = step.batch if compares else min(step.batch, step.at_once * step.processes)
    return {
        "training_queries": queries,
        "processes": step.processes,
        "queries_per_batch": min(together, queries),
        "queries_per_step": min(step.batch, queries) * step.batches,
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
