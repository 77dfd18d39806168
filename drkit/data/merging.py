"""Sorted keys with counts in files, and their sums in memory that does not grow with them: external sorting."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

_BLOCK = 1 << 20
CountedKeys = tuple["NDArray[np.int64]", "NDArray[np.int64]"]  # keys, sorted and unique, and their counts


@frozen
class Spilled:
    """Numbers in a file, read and written by slices: [length], or more axes where the dtype is that of a row.

    Not mapped, and read without reading ahead: for a small slice the operating system may read megabytes more, which
    costs a run with little memory more than the work itself.
    """

    path: str
    dtype: np.dtype[Any]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.length)
        with Path(self.path).open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # not on macOS
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            return np.fromfile(file, self.dtype, max(stop - start, 0), offset=start * self.dtype.itemsize)

    def __setitem__(self, rows: slice, values: NDArray[Any]) -> None:
        with Path(self.path).open("r+b") as file:
            file.seek(rows.indices(self.length)[0] * self.dtype.itemsize)
            values.astype(self.dtype.base, copy=False).tofile(file)


def spill(values: NDArray[Any], path: str) -> Spilled:
    """Write an array [n] to a file, so that it takes no memory."""
    values.tofile(path)
    return Spilled(path, values.dtype, len(values))


def key_ranges(runs: Sequence[Spilled], size: int) -> Iterator[list[slice]]:
    """Cut sorted keys into ranges of about `size` keys; yield the slices of each, one of every run."""
    stored = sum(map(len, runs))
    ranges = max(-(-stored // size), 1)
    # No range is more than an eighth larger or smaller than the others: each run is off by less than a step.
    steps = [max(len(keys) // (8 * ranges), 1) for keys in runs]
    sample = np.sort(np.concatenate([_every(step, keys) for keys, step in zip(runs, steps, strict=True)]))
    borders = np.unique(sample[np.arange(1, ranges) * len(sample) // ranges])
    cuts = [[0, *_search(keys, borders).tolist(), len(keys)] for keys in runs]
    for number in range(len(borders) + 1):
        yield [slice(*cut[number : number + 2]) for cut in cuts]


def _every(step: int, keys: Spilled) -> NDArray[Any]:
    """Return every `step`-th of the keys."""
    # Copies: a view would keep its block in memory.
    return np.concatenate([block[-start % step :: step].copy() for start, block in _blocks(keys)])


def _search(keys: Spilled, borders: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many of the sorted keys are below each border, i64[borders]."""
    below = np.zeros(len(borders), np.int64)
    for _, block in _blocks(keys):
        below += np.searchsorted(block, borders)
    return below


def _blocks(keys: Spilled) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield blocks of keys, at least one, with the index of their first."""
    return ((start, keys[start : start + _BLOCK]) for start in range(0, max(len(keys), 1), _BLOCK))


def merged(runs: Sequence[tuple[Spilled, Spilled]], size: int) -> Iterator[CountedKeys]:
    """Merge sorted runs; yield the result in the order of keys, in chunks of about `size` keys."""
    if runs:
        for slices in key_ranges([keys for keys, _ in runs], size):
            pieces = zip(runs, slices, strict=True)
            yield _sum_of([(keys[rows], counts[rows].astype(np.int64, copy=False)) for (keys, counts), rows in pieces])


def merge_on_disk(runs: Sequence[tuple[Spilled, Spilled]], path: str, size: int) -> tuple[Spilled, Spilled]:
    """Write what `merged` yields as one run, and remove the files of the others; path: the beginning of its files'."""
    length = 0
    with Path(f"{path}.keys").open("wb") as key_file, Path(f"{path}.counts").open("wb") as count_file:
        for keys, counts in merged(runs, size):
            keys.tofile(key_file)
            counts.tofile(count_file)
            length += len(keys)
    for spilled in chain.from_iterable(runs):
        Path(spilled.path).unlink()
    return Spilled(key_file.name, keys.dtype, length), Spilled(count_file.name, counts.dtype, length)


def _sum_of(runs: list[CountedKeys]) -> CountedKeys:
    if len(runs) == 1:
        return runs[0]
    keys, positions = sorted_with_positions(np.concatenate([keys for keys, _ in runs]))
    return summed(keys, np.concatenate([counts for _, counts in runs])[positions])


def summed(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> CountedKeys:
    """Return the distinct keys of sorted ones, and the sums of their counts."""
    firsts = np.flatnonzero(is_new(keys))
    return keys[firsts], np.add.reduceat(counts, firsts) if len(firsts) else counts


def is_new(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the sorted keys differ from the key before, bool[n]."""
    found = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=found[1:])
    return found


def sorted_with_positions(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys that are not -1, sorted, and the positions that they had.

    Keys and positions that fit 63 bits together are sorted as one number, which is faster than sorting positions.
    """
    positions, bits = np.flatnonzero(keys >= 0), len(keys).bit_length()
    if int(keys.max(initial=0)) >> (63 - bits):
        positions = positions[np.argsort(keys[positions])]
        return keys[positions], positions
    packed = (keys[positions] << bits) | positions
    packed.sort()
    return packed >> bits, packed & ((1 << bits) - 1)
