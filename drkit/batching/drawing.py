"""Cut the rows of an epoch into batches: at random, in an order, or by groups of rows; and check what a part made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count as numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.core.types import BatchRows
from drkit.errors import DrkitError

RowIndices = NDArray[np.int64]
# By how much the start of each epoch's draw of groups moves: the golden ratio, which spreads best.
_STEP = (5**0.5 - 1) / 2


def random_batches(
    rows: int,
    *,
    size: int,
    seed: int,
    epoch: int,
    reads: Callable[[RowIndices], NDArray[np.bool_]] | None = None,
) -> list[RowIndices]:
    """Return the batches of an epoch of a number of rows, each row in one of them, in random order.

    reads: which of the rows i64[n] the epoch reads; None: all. Those that do not fill a batch are left out, others in
    every epoch.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(rows)
    if reads is not None:
        order = order[reads(order)]
    return cut_batches(order, size=size, rng=rng)


def cut_batches(order: RowIndices, *, size: int, rng: np.random.Generator) -> list[RowIndices]:
    """Cut an order of rows i64[n] into batches, and return these in random order; at least 1, of all rows if n < size.

    The last rows, which do not fill a batch, are left out.
    """
    size = min(size, len(order))
    batches = order[: len(order) // size * size].reshape(-1, size)
    return list(batches[rng.permutation(len(batches))])


def grouped_batches(
    groups: Sequence[RowIndices],
    weights: NDArray[np.float64],
    *,
    size: int,
    count: int,
    seed: int,
    epoch: int,
    per_batch: int = 1,
    first: int = 0,
) -> list[RowIndices]:
    """Return the batches of an epoch, each with rows of a single group, or of a few, in random order.

    groups: the rows of each, not empty. weights f64[groups]: how often a batch is of each group, in proportion, which
    every epoch meets to within a batch. per_batch: groups in a batch, each with an equal share of its rows. first: the
    first epoch with these groups.

    A group is read in random order, all of it before any row is read again. RowIndices that do not fill a batch, or its
    share, are left out of that round, others in every round; a group with fewer rows than that gives all of them. What
    an epoch reads depends on the seed and the number of epochs before it alone.
    """
    per_batch = min(per_batch, size)
    drawn = np.diff(_boundaries(weights, count * per_batch, seed, epoch), axis=1)  # of each epoch so far, by group
    before, now = drawn[first:-1].sum(0), drawn[-1]
    rng = np.random.default_rng([seed, epoch])
    shares: list[RowIndices] = []
    for group in rng.permutation(len(groups)).tolist():
        seeds = [seed, first, group]
        found = _rounds(groups[group], int(before[group]), int(now[group]), size=size // per_batch, seed=seeds)
        shares += [found[index] for index in rng.permutation(len(found))]
    # Those of the same group are next to each other, and `count` apart are those of others.
    batches = shares if per_batch == 1 else [np.unique(np.concatenate(shares[one::count])) for one in range(count)]
    return [batches[index] for index in rng.permutation(count)]


def _boundaries(weights: NDArray[np.float64], count: int, seed: int, epoch: int) -> RowIndices:
    """Return i64[epochs, groups + 1]: batch b of an epoch is of group g if b is from boundary g to before g + 1."""
    sums = np.concatenate([[0.0], np.cumsum(weights) / weights.sum()])
    sums[-1] = 1.0
    offsets = (np.random.default_rng(seed).random() + _STEP * np.arange(epoch + 1)) % 1
    boundaries: RowIndices = np.floor(count * sums + offsets[:, None]).astype(np.int64)
    return boundaries


def _rounds(rows: RowIndices, start: int, count: int, *, size: int, seed: Sequence[int]) -> list[RowIndices]:
    """Return `count` batches of a group from its batch `start` on, in rounds that read every row at most once."""
    size = min(size, len(rows))
    per_round = len(rows) // size
    batches: list[RowIndices] = []
    for number in numbers(start // per_round):
        if len(batches) >= count:
            return batches
        order = np.random.default_rng([*seed, number]).permutation(rows)
        first = start + len(batches) - number * per_round
        left = order[first * size : per_round * size].reshape(-1, size)
        batches += list(left[: count - len(batches)])
    raise AssertionError


def checked_batches(found: Any, rows: BatchRows, *, size: int, count: int, title: str) -> list[RowIndices]:
    """Return the batches that a part made, as arrays i64; title: the part's, for errors.

    Raises DrkitError unless they are `count` arrays of 1 to `size` different rows.
    """
    if not isinstance(found, Sequence) and not isinstance(found, np.ndarray):
        raise DrkitError(f"{title}: expected a list of {count:,} batches, got {type(found).__name__}")
    if len(found) != count:
        raise DrkitError(f"{title}: expected {count:,} batches in an epoch, got {len(found):,}")
    batches = []
    for number, one in enumerate(found):
        batch = np.asarray(one)
        if batch.ndim != 1 or batch.dtype.kind not in "iu" or not 1 <= len(batch) <= size:
            raise DrkitError(
                f"{title}: expected 1 to {size:,} rows in each batch, as an array of whole numbers; batch {number} is "
                f"{batch.dtype}{list(batch.shape)}"
            )
        if batch.min() < 0 or batch.max() >= len(rows) or len(np.unique(batch)) < len(batch):
            raise DrkitError(
                f"{title}: expected different rows from 0 to {len(rows) - 1:,} in each batch, but batch {number} has "
                f"{'others' if batch.min() < 0 or batch.max() >= len(rows) else 'a row twice'}"
            )
        batches.append(batch.astype(np.int64))
    return batches
