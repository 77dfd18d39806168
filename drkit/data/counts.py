"""Exact counts of the n-grams of a token store, in memory that does not grow with it.

The key of an n-gram is (rank of its first n - 1 tokens among the (n-1)-grams) * base + its last token, so that n-grams
of any order over any vocabulary fit 64 bits. Each order is counted in ranges of texts, whose sorted n-grams go to disk
and are merged by ranges of keys. They are looked up in the same way: a table is read once, from front to back, however
many texts there are. Ranges of texts may be counted and looked up by the machines of an engine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.engine import Engine, LocalEngine, Task
from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.store import TokenStore

# Measured peak of a range of texts: keys, ranks, sort order and copies.
_BYTES_PER_TOKEN = 192
# Tables with smaller keys (single tokens) are looked up in an array of this length at most.
_LARGEST_LOOKUP = 1 << 21
_SMALLEST_CHUNK = 1 << 16

T = TypeVar("T")
Run = tuple["NDArray[np.int64]", "NDArray[np.int64]"]  # keys, sorted and unique, and their counts


@frozen
class Spilled:
    """Numbers [length] in a file, read and written by slices.

    Not mapped: for a small slice of a mapped file the system may read megabytes ahead, which costs a run with little
    memory more than the work itself.
    """

    path: str
    dtype: np.dtype[Any]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.length)
        return np.fromfile(self.path, self.dtype, max(stop - start, 0), offset=start * self.dtype.itemsize)

    def __setitem__(self, rows: slice, values: NDArray[Any]) -> None:
        with Path(self.path).open("r+b") as file:
            file.seek(rows.indices(self.length)[0] * self.dtype.itemsize)
            values.astype(self.dtype, copy=False).tofile(file)


def spill(values: NDArray[Any], path: str) -> Spilled:
    """Write an array [n] to a file, so that it takes no memory."""
    values.tofile(path)
    return Spilled(path, values.dtype, len(values))


def count(
    store: TokenStore,
    folder: Path,
    *,
    window: int = 4,
    min_count: int = 1,
    memory_mb: int = 256,
    workers: int | None = None,
    engine: Engine | None = None,
) -> NgramCounts:
    """Count all n-grams of n = 1 .. `window` content tokens within a text, and write the counts to `folder`.

    N-grams that occur less than `min_count` times are dropped after counting. memory_mb: approximate memory limit in
    MiB; workers: number of threads (None: all that the engine has); engine: where ranges of texts are counted, in this
    process if None. None of them affects the result.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    base = int(store.flat_ids.max(initial=0)) + 1
    texts_of_length = np.bincount(np.diff(store.offsets))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".runs-") as scratch:
        grams = _StoreNgrams(store, base, Path(scratch), memory_mb, workers, engine)
        for order in range(1, window + 1):
            grams.lengthen()
            with ArrayWriter(folder / f"{order}.arrow", {"keys": np.int64, "counts": np.int64}) as writer:
                ngrams_in_text = np.maximum(np.arange(len(texts_of_length)) - order + 1, 0)
                total = int(texts_of_length @ ngrams_in_text)
                writer.metadata = {"total": total, "base": base, "window": window, "min_count": min_count}
                for keys, counts in merged([(part.keys, part.counts) for part in grams.parts], grams.keys_at_once):
                    kept = counts >= min_count
                    writer.append(keys=keys[kept], counts=counts[kept])
            if order < window:
                grams.look_up(folder / f"{order}.arrow")
    return NgramCounts(folder)


class _StoreNgrams:
    """The n-grams that start at the tokens of a store, in parts on disk: none at first, then one order after another.

    keys_at_once: keys of several parts, or of a table, that fit in memory.
    """

    def __init__(
        self,
        store: TokenStore,
        base: int,
        scratch: Path,
        memory_mb: int = 256,
        workers: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._store, self._base, self._scratch, self._order = store, base, scratch, 0
        self._engine: Engine = engine or LocalEngine()
        self._workers = workers or self._engine.threads
        size = _chunk_size(store, memory_mb, self._workers, self._engine.slots)
        self.keys_at_once = size * self._workers
        self._texts = list(text_chunks(store.offsets, size))
        self.parts: list[_Part] = []

    def lengthen(self) -> None:
        """Go on to the n-grams that are one token longer; those before must have been looked up."""
        self._order += 1
        folder = self._scratch / str(self._order)
        folder.mkdir()
        shorter: Sequence[_Part | None] = self.parts or [None] * len(self._texts)
        files = [folder / str(number) for number in range(len(self._texts))]
        given = (self._store, self._base, self._order, self._workers)
        tasks = (
            Task(self._name(some), write_parts, (*given, some))
            for some in self._shares(list(zip(files, self._texts, shorter, strict=True)))
        )
        self.parts = [part for written in self._engine.run(tasks) for part in written]
        shutil.rmtree(self._scratch / str(self._order - 1), ignore_errors=True)

    def look_up(self, table: Path) -> None:
        """Set the ranks and counts of all parts to those of a table, which each task reads once."""
        given = (table, self.keys_at_once, self._workers)
        tasks = (Task(self._name(some), look_up_parts, (*given, some)) for some in self._shares(self.parts))
        for _ in self._engine.run(tasks):
            pass

    def _shares(self, parts: list[T]) -> Iterator[list[T]]:
        """Yield the parts of each task; a machine has as few tasks as it can."""
        share = max(-(-len(parts) // self._engine.slots), 1)
        return (parts[start : start + share] for start in range(0, len(parts), share))

    def _name(self, some: Sequence[Any]) -> str:
        return f"{self._order}-grams of {len(some)} of the {len(self._texts)} parts of {self._store.path}"


def write_parts(
    store: TokenStore,
    base: int,
    order: int,
    workers: int,
    parts: Sequence[tuple[Path, tuple[int, int], _Part | None]],
) -> list[_Part]:
    """Write the n-grams of one order; a part has the beginning of its files, a range of texts, and shorter n-grams."""

    def write(part: tuple[Path, tuple[int, int], _Part | None]) -> _Part:
        files, (first, last), shorter = part
        offsets = store.offsets[first : last + 1]
        tokens = slice(int(offsets[0]), int(offsets[-1]))
        flat = store.flat_ids[tokens].astype(np.int64)
        ranks = None if shorter is None else shorter.at_tokens(shorter.ranks, missing=-1)
        return _Part.write(files, tokens, ngram_keys(flat, remaining_tokens(offsets), order, ranks, base))

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(write, parts))


def look_up_parts(path: Path, keys_at_once: int, workers: int, parts: Sequence[_Part]) -> None:
    """Set the ranks and counts of parts to those of the table in a file, which is read once; repeated calls agree."""
    table = NgramTable(path)
    starts = range(0, len(table.keys), keys_at_once)
    lasts = np.array([table.keys[start : start + keys_at_once][-1] for start in starts], np.int64)
    with ThreadPoolExecutor(workers) as pool:
        cuts = list(pool.map(lambda part: [0, *np.searchsorted(part.keys[:], lasts, side="right")], parts))
        for number, start in enumerate(starts):
            rows = slice(start, start + keys_at_once)
            run = np.array(table.keys[rows]), np.array(table.counts[rows])
            slices = [slice(int(cut[number]), int(cut[number + 1])) for cut in cuts]
            list(pool.map(partial(_Part.look_up, run=run, rank=start), parts, slices))
    for part, cut in zip(parts, cuts, strict=True):
        missing = slice(int(cut[-1]), len(part.keys))
        part.ranks[missing] = np.full(missing.stop - missing.start, -1)
        part.counts[missing] = np.zeros(missing.stop - missing.start)


@frozen(eq=False)
class _Part:
    """The distinct n-grams of a range of texts, in files.

    tokens: of the texts, in the store. starts: i32[tokens], which n-gram starts at a token, or -1. keys: i64[n],
    sorted. counts: i64[n], in the texts; after a look-up, in a table. ranks: i64[n], after a look-up, in the table, or
    -1.
    """

    tokens: slice
    starts: Spilled
    keys: Spilled
    counts: Spilled
    ranks: Spilled

    @classmethod
    def write(cls, files: Path, tokens: slice, keys: NDArray[np.int64]) -> _Part:
        """Write the n-grams with these keys i64[tokens], -1 for none; files: the beginning of the files' paths."""
        in_order, positions = _sorted_with_positions(keys)
        firsts = np.flatnonzero(np.diff(in_order, prepend=-1))
        counts = np.diff(firsts, append=len(in_order))
        starts = np.full(len(keys), -1, np.int32)
        starts[positions] = np.repeat(np.arange(len(firsts), dtype=np.int32), counts)
        columns: dict[str, NDArray[Any]] = {"starts": starts, "keys": in_order[firsts], "counts": counts}
        spilled = {name: spill(values, f"{files}.{name}") for name, values in columns.items()}
        ranks = Path(f"{files}.ranks")
        ranks.touch()
        return cls(tokens, **spilled, ranks=Spilled(str(ranks), counts.dtype, len(counts)))

    def at_tokens(self, values: Spilled, *, missing: int) -> NDArray[np.int64]:
        """Return for each token the value of the n-gram that starts there; values: i64[n], of the distinct n-grams."""
        found: NDArray[np.int64] = np.append(values[:], missing)[self.starts[:]]
        return found

    def look_up(self, rows: slice, run: Run, rank: int) -> None:
        """Look up the n-grams in `rows`, whose keys are among those of `run` or missing.

        run: keys of a table that follow one another, and their counts; rank: of its first key.
        """
        keys, counts = run
        own = self.keys[rows]
        nearest = np.searchsorted(keys, own)
        found = keys[nearest] == own
        self.ranks[rows] = np.where(found, rank + nearest, -1)
        self.counts[rows] = np.where(found, counts[nearest], 0)


def _sorted_with_positions(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the keys that are not -1, sorted, and the positions that they had.

    Keys and positions that fit 63 bits together are sorted as one number, which is faster than sorting positions.
    """
    positions, bits = np.flatnonzero(keys >= 0), len(keys).bit_length()
    if int(keys.max(initial=0)) >> (63 - bits):
        positions = positions[np.argsort(keys[positions], kind="stable")]
        return keys[positions], positions
    packed = (keys[positions] << bits) | positions
    packed.sort()
    return packed >> bits, packed & ((1 << bits) - 1)


def _chunk_size(store: TokenStore, memory_mb: int, workers: int, machines: int) -> int:
    """Return the tokens per chunk: limited by memory, and small enough that every worker of a small corpus has some."""
    allowed = memory_mb * 2**20 // (_BYTES_PER_TOKEN * workers)
    share = max(-(-len(store.flat_ids) // (workers * machines)), _SMALLEST_CHUNK)
    return max(min(allowed, share), 1)


def text_chunks(offsets: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, last) of texts with about `size` tokens each, at least one text."""
    first, texts = 0, len(offsets) - 1
    while first < texts:
        last = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        last = min(max(last, first + 1), texts)
        yield first, last
        first = last


def remaining_tokens(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of tokens i64[tokens] from each token to the end of its text, including itself."""
    ends = np.repeat(offsets[1:], np.diff(offsets))
    return ends - np.arange(int(offsets[0]), int(offsets[-1]), dtype=np.int64)


def ngram_keys(
    flat: NDArray[np.int64],
    remaining: NDArray[np.int64],
    order: int,
    ranks: NDArray[np.int64] | None,
    base: int,
) -> NDArray[np.int64]:
    """Return the key i64[tokens] of the n-gram that starts at each token; -1 if it leaves the text or was not counted.

    ranks: of the n-grams of order n - 1 (None for single tokens).
    """
    keys = np.full(len(flat), -1, dtype=np.int64)
    starts = len(flat) - order + 1
    if starts <= 0:
        return keys
    last = flat[order - 1 :]
    valid = (remaining[:starts] >= order) & (last < base)
    if ranks is None:
        keys[:starts] = np.where(valid, last, -1)
    else:
        prefix = ranks[:starts]
        keys[:starts] = np.where(valid & (prefix >= 0), prefix * base + last, -1)
    return keys


def merged(runs: Sequence[tuple[Spilled, Spilled]], size: int) -> Iterator[Run]:
    """Merge sorted runs; yield the result in the order of keys, in parts of about `size` keys."""
    stored = sum(len(keys) for keys, _ in runs)
    parts = max(-(-stored // size), 1)
    steps = [max(len(keys) // (64 * parts), 1) for keys, _ in runs]
    # Copies: a view would keep all keys of its run in memory.
    sampled = [keys[:][::step].copy() for (keys, _), step in zip(runs, steps, strict=True)]
    sample = np.sort(np.concatenate([np.empty(0, np.int64), *sampled]))
    borders = np.unique(sample[np.arange(1, parts) * len(sample) // parts])
    cuts = [np.searchsorted(keys[:], borders) for keys, _ in runs]
    for part in range(len(borders) + 1):
        pieces = []
        for (keys, counts), cut in zip(runs, cuts, strict=True):
            start = int(cut[part - 1]) if part else 0
            stop = int(cut[part]) if part < len(borders) else len(keys)
            pieces.append((keys[start:stop], counts[start:stop]))
        yield _sum_of(pieces)


def _sum_of(runs: list[Run]) -> Run:
    if not runs:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if len(runs) == 1:
        return runs[0]
    keys, positions = _sorted_with_positions(np.concatenate([keys for keys, _ in runs]))
    counts = np.concatenate([counts for _, counts in runs])[positions]
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[firsts], np.add.reduceat(counts, firsts) if len(firsts) else counts


class NgramTable:
    """The n-grams of one order: sorted keys i64[n], counts i64[n], and `total`, the number of all n-grams."""

    def __init__(self, path: Path) -> None:
        self._arrays = Arrays(path)
        self.keys: NDArray[np.int64] = self._arrays["keys"]
        self.counts: NDArray[np.int64] = self._arrays["counts"]
        self.total = int(self._arrays.metadata["total"])
        self.metadata = self._arrays.metadata

    def ranks(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index i64[n] of each key in the table, or -1 if it is missing (or is -1)."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        if self.keys[-1] < _LARGEST_LOOKUP:
            return self._lookup[np.where(keys <= self.keys[-1], keys, -1)]
        # Sorted keys read the memory-mapped table from front to back.
        distinct, inverse = np.unique(keys, return_inverse=True)
        indices = np.minimum(np.searchsorted(self.keys, distinct), len(self.keys) - 1)
        return np.where(self.keys[indices] == distinct, indices, -1)[inverse]

    @cached_property
    def _lookup(self) -> NDArray[np.int64]:
        """The index of each key, and -1 for missing ones; its last entry, which key -1 finds, is -1, too."""
        indices = np.full(int(self.keys[-1]) + 2, -1, dtype=np.int64)
        indices[self.keys] = np.arange(len(self.keys))
        return indices

    def log_shares(self, counts: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Return log(count / total) f64[n] of counts [n]; NaN for 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.log(counts.astype(np.float64)) - np.log(self.total)
        return np.where(counts > 0, shares, np.nan)


class NgramCounts:
    """The tables that `count` wrote to a folder. Raises DrkitError if they are missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        metadata = NgramTable(self.folder / "1.arrow").metadata
        self.window, self.min_count, self.base = (int(metadata[name]) for name in ("window", "min_count", "base"))
        self.tables = tuple(NgramTable(self.folder / f"{order}.arrow") for order in range(1, self.window + 1))

    def describe(self) -> dict[str, Any]:
        """Return window, min_count, and for each order the total n-grams and the distinct ones kept."""
        return {
            "window": self.window,
            "min_count": self.min_count,
            "total": [table.total for table in self.tables],
            "distinct": [len(table.keys) for table in self.tables],
        }

    def log_shares(self, ids: NDArray[Any], offsets: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
        """Yield for n = 1 .. window the log-probability f64[tokens] of the n-gram that starts at each token.

        NaN if the n-gram was not counted, was dropped, or leaves the text. For a whole store, `store_log_shares` reads
        the tables once.
        """
        flat, remaining = ids.astype(np.int64), remaining_tokens(offsets)
        ranks: NDArray[np.int64] | None = None
        for order, table in enumerate(self.tables, start=1):
            ranks = table.ranks(ngram_keys(flat, remaining, order, ranks, self.base))
            counts, found = np.zeros(len(ranks), np.int64), ranks >= 0
            counts[found] = table.counts[ranks[found]]
            yield table.log_shares(counts)

    def store_log_shares(
        self,
        store: TokenStore,
        texts: Iterable[tuple[int, int]],
        *,
        scratch: Path | None = None,
        engine: Engine | None = None,
    ) -> Iterator[list[NDArray[np.float64]]]:
        """Yield for ranges of a store's texts what `log_shares` yields, as a list.

        scratch: where counts of every token of the store are written first: 2 to 8 bytes for each order and token, and
        as much again for the n-grams while they are looked up (None: the system's temporary folder). engine: where the
        n-grams are looked up, in this process if None; other machines need a scratch folder that they share.
        """
        with tempfile.TemporaryDirectory(dir=scratch, prefix=".counts-") as folder:
            found = self._store_counts(store, Path(folder), engine)
            for first, last in texts:
                tokens = slice(int(store.offsets[first]), int(store.offsets[last]))
                yield [table.log_shares(counts[tokens]) for table, counts in zip(self.tables, found, strict=True)]

    def _store_counts(self, store: TokenStore, scratch: Path, engine: Engine | None) -> list[NDArray[Any]]:
        """Return for each order how often the n-gram that starts at each token was counted, in mapped files."""
        grams, found = _StoreNgrams(store, self.base, scratch, engine=engine), list[NDArray[Any]]()
        for order, table in enumerate(self.tables, start=1):
            grams.lengthen()
            grams.look_up(self.folder / f"{order}.arrow")
            shape = max(len(store.flat_ids), 1)
            counts = np.memmap(scratch / f"counts-{order}", np.min_scalar_type(table.total), "w+", shape=shape)
            for part in grams.parts:
                counts[part.tokens] = part.at_tokens(part.counts, missing=0)
            found.append(counts)
        return found
