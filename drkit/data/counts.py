"""Exact counts of the n-grams of a token store, in memory that does not grow with it: an external merge sort.

1. **Keys.** An n-gram is a number whose digits are its tokens (their ids + 1; 0 stands for what lies beyond the end of
   a text). As many tokens as fit 64 bits make a key: four of a vocabulary of 30,000. The sorted keys of the longest
   n-grams begin with those of all shorter ones, so one sort counts every order. Of n-grams longer than a key, the rank
   of that beginning in its table is the first digit, and the steps below are repeated.
2. **Sort.** The texts are cut into ranges of tokens that fit in memory. Each range is sorted and its distinct keys are
   written to disk with their counts: by one thread each, or on several machines with an engine.
3. **Merge.** The sorted ranges are read side by side, a range of keys at a time; equal keys are added up.
4. **Look-up** (`NgramCounts.log_shares`) goes the same way: all n-grams that have keys of a range are sorted together
   and joined with the table, which is read once, from front to back.

Price for T tokens, windows of w tokens, d of which fit a key, and c tokens in memory: time O(w / d * T log c + w T),
memory O(c) (`memory_mb`), disk O(w T) at worst, where hardly an n-gram occurs twice. Measured on one core with 8
million random tokens (Zipf, 30,000 types, w = 4; real texts repeat themselves more): 0.4 microseconds and at most 75
bytes of disk for each token, of which 38 are the tables that stay, and 190 MB of memory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from drkit.core.engine import Engine, LocalEngine, Task
from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.merging import CountedKeys, Spilled, is_new, key_ranges, merged, sorted_with_positions, spill, summed
from drkit.data.store import TokenStore

# Measured peak of a range of texts: keys, ranks, sort order and copies.
_BYTES_PER_TOKEN = 192
_SMALLEST_CHUNK = 1 << 16
_TABLE = {"keys": np.int64, "counts": np.int64}

T = TypeVar("T")


def count_ngrams(
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
    base = int(store.flat_ids.max(initial=0)) + 2
    texts_of_length = np.bincount(np.diff(store.offsets))
    with tempfile.TemporaryDirectory(dir=folder, prefix=".runs-") as scratch:
        grams = _StoreNgrams(store, base, Path(scratch), memory_mb, workers, engine)
        counted, beginnings = 0, 1
        while counted < window:
            orders = range(counted + 1, 1 + min(window, counted + _digits(base, beginnings)))
            grams.lengthen(orders)
            with ExitStack() as stack:
                files = (folder / f"{order}.arrow" for order in orders)
                writers = [stack.enter_context(ArrayWriter(file, _TABLE)) for file in files]
                for order, writer in zip(orders, writers, strict=True):
                    total = int(texts_of_length @ np.maximum(np.arange(len(texts_of_length)) - order + 1, 0))
                    facts = {"base": base, "window": window, "min_count": min_count}
                    writer.metadata = {"total": total, "ranked": counted, **facts}
                runs = merged([(chunk.keys, chunk.counts) for chunk in grams.chunks], grams.keys_at_once)
                _write_tables(runs, writers, base, min_count)
            counted = orders[-1]
            if counted < window:
                grams.look_up(folder, range(counted, counted + 1))
                beginnings = len(NgramTable(folder / f"{counted}.arrow").keys)
    return NgramCounts(folder)


def _digits(base: int, beginnings: int) -> int:
    """Return how many digits fit a key after the rank of one of so many beginnings, at least one."""
    fitting = 1
    while max(beginnings, 1) * base ** (fitting + 1) < 2**63:
        fitting += 1
    return fitting


def _write_tables(runs: Iterable[CountedKeys], writers: Sequence[ArrayWriter], base: int, min_count: int) -> None:
    """Write the n-grams of several orders, shortest first: all beginnings of the longest ones, which are in `runs`."""

    def write(writer: ArrayWriter, run: CountedKeys) -> None:
        keys, counts = run
        kept = (keys % base > 0) & (counts >= min_count)
        writer.append(keys=keys[kept], counts=counts[kept])

    # The last n-gram of a run may go on in the next one.
    held: list[CountedKeys] = [(np.empty(0, np.int64), np.empty(0, np.int64)) for _ in writers]
    for keys, counts in runs:
        run = keys, counts
        for place in reversed(range(len(writers))):
            found = summed(np.append(held[place][0], run[0]), np.append(held[place][1], run[1]))
            held[place] = found[0][-1:], found[1][-1:]
            write(writers[place], (found[0][:-1], found[1][:-1]))
            run = summed(run[0] // base, run[1])
    for writer, run in zip(writers, held, strict=True):
        write(writer, run)


class _StoreNgrams:
    """The n-grams that start at the tokens of a store, in chunks on disk: none at first, then longer and longer ones.

    keys_at_once: keys of several chunks, or of a table, that fit in memory.
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
        self._store, self._base, self._scratch, self._orders = store, base, scratch, range(0, 1)
        self._engine: Engine = engine or LocalEngine()
        self._workers = workers or self._engine.threads
        size = _tokens_per_chunk(store, memory_mb, self._workers, self._engine.slots)
        self.keys_at_once = size * self._workers
        self._texts = list(text_chunks(store.offsets, size))
        self.chunks: list[_Chunk] = []

    def lengthen(self, orders: range) -> None:
        """Write the n-grams of the next orders; the longest ones before must have been looked up."""
        done, self._orders = self._orders, orders
        folder = self._scratch / str(orders[-1])
        folder.mkdir()
        shorter: Sequence[_Chunk | None] = self.chunks or [None] * len(self._texts)
        files = [folder / str(number) for number in range(len(self._texts))]
        given = (self._store, self._base, orders, self._workers)
        tasks = (
            Task(self._name(some), write_chunks, (*given, some))
            for some in self._shares(list(zip(files, self._texts, shorter, strict=True)))
        )
        self.chunks = [chunk for written in self._engine.run(tasks) for chunk in written]
        shutil.rmtree(self._scratch / str(done[-1]), ignore_errors=True)

    def look_up(self, folder: Path, orders: range) -> None:
        """Look up the n-grams of some of the present orders in the tables of a folder, which each task reads once."""
        tables = [(folder / f"{order}.arrow", self._base ** (self._orders[-1] - order)) for order in orders]
        given = (tables, self.keys_at_once, self._workers)
        tasks = (Task(self._name(some), look_up_chunks, (*given, some)) for some in self._shares(self.chunks))
        self.chunks = [chunk for found in self._engine.run(tasks) for chunk in found]

    def _shares(self, chunks: list[T]) -> Iterator[list[T]]:
        """Yield the chunks of each task; a machine has as few tasks as it can."""
        share = max(-(-len(chunks) // self._engine.slots), 1)
        return (chunks[start : start + share] for start in range(0, len(chunks), share))

    def _name(self, some: Sequence[Any]) -> str:
        return f"{self._orders[-1]}-grams of {len(some)} of the {len(self._texts)} chunks of {self._store.path}"


def write_chunks(
    store: TokenStore,
    base: int,
    orders: range,
    workers: int,
    chunks: Sequence[tuple[Path, tuple[int, int], _Chunk | None]],
) -> list[_Chunk]:
    """Write n-grams of some orders; a chunk has the beginning of its files, a range of texts, and shorter n-grams."""

    def write(chunk: tuple[Path, tuple[int, int], _Chunk | None]) -> _Chunk:
        files, (first, last), shorter = chunk
        offsets = store.offsets[first : last + 1]
        tokens = slice(int(offsets[0]), int(offsets[-1]))
        flat = store.flat_ids[tokens].astype(np.int64)
        ranks = None if shorter is None else shorter.found_at_tokens()[:, -1]
        return _Chunk.write(files, tokens, ngram_keys(flat, remaining_tokens(offsets), orders, ranks, base))

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(write, chunks))


def look_up_chunks(
    tables: Sequence[tuple[Path, int]], keys_at_once: int, workers: int, chunks: list[_Chunk]
) -> list[_Chunk]:
    """Return chunks with the counts and ranks that their n-grams have in tables, each of which is read once.

    tables: of several orders, shortest first; each has a file, and the digits that a chunk's keys have and its own keys
    lack, as a power of the base.
    """
    opened = [(NgramTable(path), beyond) for path, beyond in tables]
    dtype = np.min_scalar_type(-max(table.total for table, _ in opened) - 1)
    chunks = [chunk.with_found(np.dtype((dtype, (len(tables) + 1,)))) for chunk in chunks]

    def write(slices: Sequence[slice]) -> None:
        pieces = [chunk.keys[rows] for chunk, rows in zip(chunks, slices, strict=True)]
        keys, positions = sorted_with_positions(np.concatenate(pieces))
        found = np.empty((len(keys), len(tables) + 1), dtype)
        for column, (table, beyond) in enumerate(opened):
            own = keys // beyond
            firsts = np.flatnonzero(is_new(own))
            ranks, counts = table.find(own[firsts])
            copies = np.diff(firsts, append=len(own))
            found[positions, column] = np.repeat(counts, copies)
        found[positions, -1] = np.repeat(ranks, copies)
        ends = np.cumsum([len(piece) for piece in pieces])
        for chunk, rows, values in zip(chunks, slices, np.split(found, ends[:-1]), strict=True):
            chunk.found[rows] = values

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(write, key_ranges([chunk.keys for chunk in chunks], max(keys_at_once // workers, 1))))
    return chunks


@frozen(eq=False)
class _Chunk:
    """The distinct n-grams of a range of texts, in files.

    tokens: of the texts, in the store. starts: i32[tokens], which n-gram starts at a token, or -1. keys: i64[n],
    sorted. counts: i64[n], in the texts. found: after a look-up, [n, tables + 1], the counts in each table, and the
    rank in the last one; 0 and -1 if it is missing.
    """

    tokens: slice
    starts: Spilled
    keys: Spilled
    counts: Spilled
    found: Spilled

    @classmethod
    def write(cls, files: Path, tokens: slice, keys: NDArray[np.int64]) -> _Chunk:
        """Write the n-grams with these keys i64[tokens], -1 for none; files: the beginning of the files' paths."""
        in_order, positions = sorted_with_positions(keys)
        firsts = np.flatnonzero(is_new(in_order))
        counts = np.diff(firsts, append=len(in_order))
        starts = np.full(len(keys), -1, np.int32)
        starts[positions] = np.repeat(np.arange(len(firsts), dtype=np.int32), counts)
        kept = spill(starts, f"{files}.starts"), spill(in_order[firsts], f"{files}.keys")
        found = Spilled(f"{files}.found", np.dtype(np.int64), 0)
        return cls(tokens, *kept, spill(counts, f"{files}.counts"), found)

    def with_found(self, dtype: np.dtype[Any]) -> _Chunk:
        """Return the chunk with an empty file for what a look-up finds."""
        Path(self.found.path).touch()
        return evolve(self, found=Spilled(self.found.path, dtype, len(self.keys)))

    def found_at_tokens(self) -> NDArray[Any]:
        """Return what was found for the n-gram that starts at each token, [tokens, tables + 1]."""
        found = self.found[:]
        missing = np.zeros((1, found.shape[1]), found.dtype)
        missing[0, -1] = -1
        at_tokens: NDArray[Any] = np.append(found, missing, axis=0)[self.starts[:]]
        return at_tokens


def _tokens_per_chunk(store: TokenStore, memory_mb: int, workers: int, machines: int) -> int:
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
    orders: range,
    ranks: NDArray[np.signedinteger[Any]] | None,
    base: int,
) -> NDArray[np.int64]:
    """Return the key i64[tokens] of the longest n-gram of these orders that starts at each token, or -1.

    An n-gram ends with its text, or before a token that was not counted; the digits beyond are 0. ranks: of the n-grams
    before the first of `orders` (None for single tokens).
    """
    digits = np.zeros(len(flat) + orders[-1], np.int64)
    digits[: len(flat)] = np.where(flat < base - 1, flat + 1, 0)
    keys = np.zeros(len(flat), np.int64) if ranks is None else ranks.astype(np.int64)
    there = keys >= 0
    for order in orders:
        digit = digits[order - 1 : order - 1 + len(flat)]
        there &= (remaining >= order) & (digit > 0)
        if order == orders[0]:
            none = ~there
        keys *= base
        keys += digit * there
    keys[none] = -1
    return keys


class NgramTable:
    """The n-grams of one order: sorted keys i64[n], counts i64[n], and `total`, the number of all n-grams."""

    def __init__(self, path: Path) -> None:
        self._arrays = Arrays(path)
        self.keys: NDArray[np.int64] = self._arrays["keys"]
        self.counts: NDArray[np.int64] = self._arrays["counts"]
        self.total = int(self._arrays.metadata["total"])
        self.metadata = self._arrays.metadata

    def find(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rank i64[n] and the count i64[n] of each of some sorted keys; -1 and 0 if it is missing."""
        # A search of the whole table would read pages of all of it.
        start, stop = np.searchsorted(self.keys, [keys.min(initial=0), keys.max(initial=-1) + 1])
        near = self.keys[start:stop]
        if not len(near):
            return np.full(len(keys), -1), np.zeros(len(keys), np.int64)
        nearest = np.minimum(np.searchsorted(near, keys), len(near) - 1)
        found, nearest = near[nearest] == keys, nearest + start
        return np.where(found, nearest, -1), np.where(found, self.counts[nearest], 0)

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

    def _spans(self) -> Iterator[range]:
        """Yield the orders whose keys begin in the same way, and have one digit more each."""
        firsts = sorted({int(table.metadata["ranked"]) + 1 for table in self.tables})
        return (range(*pair) for pair in pairwise([*firsts, self.window + 1]))

    def describe(self) -> dict[str, Any]:
        """Return window, min_count, and for each order the total n-grams and the distinct ones kept."""
        return {
            "window": self.window,
            "min_count": self.min_count,
            "total": [table.total for table in self.tables],
            "distinct": [len(table.keys) for table in self.tables],
        }

    def log_shares(
        self,
        store: TokenStore,
        texts: Iterable[tuple[int, int]],
        *,
        scratch: Path | None = None,
        engine: Engine | None = None,
    ) -> Iterator[list[NDArray[np.float64]]]:
        """Yield, for each range of texts, the log-probabilities f64[tokens] of the n-grams of n = 1 .. window.

        The value of a token is that of the n-gram that starts there; NaN if it was not counted, was dropped, or leaves
        the text.

        scratch: where counts of every token of the store are written first: 2 to 8 bytes for each order and token, and
        twice that and 28 bytes for each token while n-grams are looked up; None: a temporary folder. engine: where they
        are looked up, in this process if None; other machines need a scratch folder that they share.
        """
        with tempfile.TemporaryDirectory(dir=scratch, prefix=".counts-") as folder:
            found = self._store_counts(store, Path(folder), engine)
            for first, last in texts:
                tokens = slice(int(store.offsets[first]), int(store.offsets[last]))
                yield [table.log_shares(counts[tokens]) for table, counts in zip(self.tables, found, strict=True)]

    def _store_counts(self, store: TokenStore, scratch: Path, engine: Engine | None) -> list[NDArray[Any]]:
        """Return for each order how often the n-gram that starts at each token was counted, in mapped files."""
        grams, found = _StoreNgrams(store, self.base, scratch, engine=engine), list[NDArray[Any]]()
        for orders in self._spans():
            grams.lengthen(orders)
            grams.look_up(self.folder, orders)
            path, dtype = scratch / f"counts-{orders[-1]}", np.dtype(np.int64)
            # Written, not mapped to be filled: on a full disk, that kills the process without a message.
            with path.open("wb") as file:
                for chunk in grams.chunks:
                    counts = np.ascontiguousarray(chunk.found_at_tokens()[:, :-1])  # else errors have no reason
                    counts.tofile(file)
                    dtype = counts.dtype
            whole = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
            found.extend(whole.reshape(-1, len(orders)).T)
        return found
