"""N-gram counts of a token store: exact, without collisions, in bounded memory whatever the corpus.

An n-gram's key is (rank of its first n - 1 tokens among the (n-1)-grams) * base + its last token, so that any order
over any vocabulary fits 64 bits. Each order is counted in chunks, sorted on every core at once; the sorted runs wait
on disk and are merged by ranges of keys that fit the memory allowed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.store import TokenStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Measured at the peak: keys, ranks, their order while they are sorted, and copies.
_BYTES_A_TOKEN = 112
_SMALLEST_CHUNK = 1 << 16

Run = tuple["NDArray[np.int64]", "NDArray[np.int64]"]  # keys, sorted and unique; how often each occurs


def count(
    store: TokenStore,
    folder: Path,
    *,
    window: int = 4,
    min_count: int = 1,
    memory_mb: int = 256,
    workers: int | None = None,
) -> NgramCounts:
    """Count all n-grams of n = 1 .. `window` content tokens, never across a text's border, into `folder`.

    N-grams that occur less than `min_count` times are dropped after counting. About `memory_mb` MiB are held; the
    result does not depend on it, nor on the number of `workers` (all cores where None).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    workers = workers or os.cpu_count() or 1
    chunk = _chunk_size(store, memory_mb, workers)
    base = int(store.flat_ids.max(initial=0)) + 1
    lengths = np.diff(store.offsets)
    tables: list[NgramTable] = []
    for order in range(1, window + 1):
        total = int(np.maximum(lengths - order + 1, 0).sum())
        runs = partial(_sorted_run, store.flat_ids, store.offsets, order, base, tuple(tables))
        with tempfile.TemporaryDirectory(dir=folder, prefix=".runs-") as scratch, ThreadPoolExecutor(workers) as pool:
            spilled = [
                _spill(run, Path(scratch) / str(number))
                for number, run in enumerate(_in_parallel(pool, runs, text_chunks(store.offsets, chunk), workers))
            ]
            with ArrayWriter(folder / f"{order}.arrow", {"keys": np.int64, "counts": np.int64}) as writer:
                writer.metadata = {"total": total, "base": base, "window": window, "min_count": min_count}
                for keys, counts in _merged(spilled, chunk * workers):
                    kept = counts >= min_count
                    writer.append(keys=keys[kept], counts=counts[kept])
        tables.append(NgramTable(folder / f"{order}.arrow"))
    return NgramCounts(folder)


def _chunk_size(store: TokenStore, memory_mb: int, workers: int) -> int:
    """Tokens a worker takes at once: what memory allows, and not all of a small corpus to one of them."""
    allowed = memory_mb * 2**20 // (_BYTES_A_TOKEN * workers)
    share = max(-(-len(store.flat_ids) // workers), _SMALLEST_CHUNK)
    return max(min(allowed, share), 1)


def text_chunks(offsets: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Ranges of texts with about `size` tokens each, at least one text."""
    first, texts = 0, len(offsets) - 1
    while first < texts:
        last = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        last = min(max(last, first + 1), texts)
        yield first, last
        first = last


def _in_parallel(pool: ThreadPoolExecutor, job: Any, chunks: Iterable[tuple[int, int]], ahead: int) -> Iterator[Run]:
    """`job(chunk)` for all chunks in their order, at most `ahead` of them held at once."""
    waiting: list[Any] = []
    for chunk in chunks:
        waiting.append(pool.submit(job, chunk))
        if len(waiting) == ahead:
            yield waiting.pop(0).result()
    while waiting:
        yield waiting.pop(0).result()


def _sorted_run(
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    order: int,
    base: int,
    tables: tuple[NgramTable, ...],
    chunk: tuple[int, int],
) -> Run:
    first, last = chunk
    flat = ids[offsets[first] : offsets[last]].astype(np.int64)
    remaining = remaining_tokens(offsets[first : last + 1])
    ranks: NDArray[np.int64] | None = None
    for lower in range(1, order):
        keys = ngram_keys(flat, remaining, lower, ranks, base)
        ranks = tables[lower - 1].ranks(keys)
    keys = ngram_keys(flat, remaining, order, ranks, base)
    return np.unique(keys[keys >= 0], return_counts=True)


def remaining_tokens(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """i64[tokens]: how many tokens there are from each to the end of its text, itself included."""
    ends = np.repeat(offsets[1:], np.diff(offsets))
    return ends - np.arange(int(offsets[0]), int(offsets[-1]), dtype=np.int64)


def ngram_keys(
    flat: NDArray[np.int64],
    remaining: NDArray[np.int64],
    order: int,
    ranks: NDArray[np.int64] | None,
    base: int,
) -> NDArray[np.int64]:
    """i64[tokens]: key of the n-gram that starts at each token; -1 where it leaves the text or was never counted.

    `ranks` are those of the n-grams of one order less (None for single tokens).
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


def _spill(run: Run, path: Path) -> Run:
    keys, counts = run
    np.save(f"{path}.keys.npy", keys)
    np.save(f"{path}.counts.npy", counts)
    return np.load(f"{path}.keys.npy", mmap_mode="r"), np.load(f"{path}.counts.npy", mmap_mode="r")


def _merged(runs: list[Run], size: int) -> Iterator[Run]:
    """All runs as one, in parts of about `size` keys each, in the keys' order."""
    stored = sum(len(keys) for keys, _ in runs)
    parts = max(-(-stored // size), 1)
    steps = [max(len(keys) // (64 * parts), 1) for keys, _ in runs]
    sampled = [keys[::step] for (keys, _), step in zip(runs, steps, strict=True)]
    sample = np.sort(np.concatenate([np.empty(0, np.int64), *sampled]))
    borders = np.unique(sample[np.arange(1, parts) * len(sample) // parts])
    cuts = [np.searchsorted(keys, borders) for keys, _ in runs]
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
    keys = np.concatenate([keys for keys, _ in runs])
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], np.concatenate([counts for _, counts in runs])[order]
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
    return keys[firsts], np.add.reduceat(counts, firsts) if len(firsts) else counts


class NgramTable:
    """The n-grams of one order: keys i64[n], sorted; counts i64[n]; total, all n-grams of this order."""

    def __init__(self, path: Path) -> None:
        self._arrays = Arrays(path)
        self.keys: NDArray[np.int64] = self._arrays["keys"]
        self.counts: NDArray[np.int64] = self._arrays["counts"]
        self.total = int(self._arrays.metadata["total"])
        self.metadata = self._arrays.metadata

    def ranks(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """i64: place of each key in the table, -1 where it is not there (or is -1)."""
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        # Sorted keys walk the table from front to back, whatever its size.
        distinct, inverse = np.unique(keys, return_inverse=True)
        places = np.minimum(np.searchsorted(self.keys, distinct), len(self.keys) - 1)
        return np.where(self.keys[places] == distinct, places, -1)[inverse]

    def log_shares(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """f64: log of count / total for each rank; NaN at -1."""
        if not len(self.keys):
            return np.full(len(ranks), np.nan)
        shares = np.log(self.counts[np.maximum(ranks, 0)]) - np.log(self.total)
        return np.where(ranks >= 0, shares, np.nan)


class NgramCounts:
    """The tables that `count` wrote to a folder. Raises DrkitError where they are not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        known = NgramTable(self.folder / "1.arrow").metadata
        self.window, self.min_count, self.base = (int(known[name]) for name in ("window", "min_count", "base"))
        self.tables = tuple(NgramTable(self.folder / f"{order}.arrow") for order in range(1, self.window + 1))

    def describe(self) -> dict[str, Any]:
        """Window, min_count, and for each order the n-grams in all and the different ones kept."""
        return {
            "window": self.window,
            "min_count": self.min_count,
            "total": [table.total for table in self.tables],
            "distinct": [len(table.keys) for table in self.tables],
        }

    def log_shares(self, ids: NDArray[Any], offsets: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
        """For n = 1 .. window, f64[tokens]: log p of the n-gram that starts at each token of these texts.

        NaN where the n-gram was not counted (or dropped), or leaves the text.
        """
        flat, remaining = ids.astype(np.int64), remaining_tokens(offsets)
        ranks: NDArray[np.int64] | None = None
        for order, table in enumerate(self.tables, start=1):
            ranks = table.ranks(ngram_keys(flat, remaining, order, ranks, self.base))
            yield table.log_shares(ranks)
