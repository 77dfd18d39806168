"""Counts of a token store: exact n-gram counts in bounded memory, and word embeddings from co-occurrences.

The key of an n-gram is (rank of its first n - 1 tokens among the (n-1)-grams) * base + its last token, so that n-grams
of any order over any vocabulary fit 64 bits. Each order is counted in chunks, which are sorted in parallel and written
to disk as sorted runs; the runs are merged by ranges of keys that fit the memory limit.

The embeddings are a truncated SVD of the PPMI matrix of tokens that occur near each other (Levy and Goldberg 2014, with
the smoothed contexts and powers of singular values of Levy, Goldberg and Dagan 2015). They take seconds, and give a
small encoder a better start than random ones.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.core.processes import available_cores
from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.store import TokenStore
from drkit.errors import DrkitError

# Measured peak of a chunk: keys, ranks, sort order and copies, and the finished chunks that wait for the disk.
_BYTES_PER_TOKEN = 192
# Tables with smaller keys (single tokens) are looked up in an array of this length at most.
_LARGEST_LOOKUP = 1 << 21
_SMALLEST_CHUNK = 1 << 16

Run = tuple["NDArray[np.int64]", "NDArray[np.int64]"]  # keys, sorted and unique, and their counts


def count(
    store: TokenStore,
    folder: Path,
    *,
    window: int = 4,
    min_count: int = 1,
    memory_mb: int = 256,
    workers: int | None = None,
) -> NgramCounts:
    """Count all n-grams of n = 1 .. `window` content tokens within a text, and write the counts to `folder`.

    N-grams that occur less than `min_count` times are dropped after counting. memory_mb: approximate memory limit in
    MiB; workers: number of threads (None: all cores). Neither affects the result.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    workers = workers or available_cores()
    chunk = _chunk_size(store, memory_mb, workers)
    base = int(store.flat_ids.max(initial=0)) + 1
    lengths = np.diff(store.offsets)
    tables: list[NgramTable] = []
    with tempfile.TemporaryDirectory(dir=folder, prefix=".ranks-") as ranked, ThreadPoolExecutor(workers) as pool:
        ranks = np.memmap(Path(ranked) / "ranks", np.int64, "w+", shape=max(len(store.flat_ids), 1))
        for order in range(1, window + 1):
            total = int(np.maximum(lengths - order + 1, 0).sum())
            runs = partial(_sorted_run, store, order, base, tables, ranks)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".runs-") as scratch:
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
    """Return the tokens per chunk: limited by memory, and small enough that every worker of a small corpus has some."""
    allowed = memory_mb * 2**20 // (_BYTES_PER_TOKEN * workers)
    share = max(-(-len(store.flat_ids) // workers), _SMALLEST_CHUNK)
    return max(min(allowed, share), 1)


def text_chunks(offsets: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, last) of texts with about `size` tokens each, at least one text."""
    first, texts = 0, len(offsets) - 1
    while first < texts:
        last = int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1
        last = min(max(last, first + 1), texts)
        yield first, last
        first = last


def _in_parallel(pool: ThreadPoolExecutor, job: Any, chunks: Iterable[tuple[int, int]], ahead: int) -> Iterator[Run]:
    """Yield `job(chunk)` for all chunks in order; at most `ahead` results are held in memory."""
    waiting: list[Any] = []
    for chunk in chunks:
        waiting.append(pool.submit(job, chunk))
        if len(waiting) == ahead:
            yield waiting.pop(0).result()
    while waiting:
        yield waiting.pop(0).result()


def _sorted_run(
    store: TokenStore,
    order: int,
    base: int,
    tables: Sequence[NgramTable],
    ranks: NDArray[np.int64],
    texts: tuple[int, int],
) -> Run:
    """Count the n-grams of a range of texts.

    ranks: i64[tokens] of the n-grams of order n - 2 that start at each token; this call replaces those of its texts by
    the ranks of order n - 1.
    """
    offsets = store.offsets[texts[0] : texts[1] + 1]
    tokens = slice(int(offsets[0]), int(offsets[-1]))
    flat, remaining = store.flat_ids[tokens].astype(np.int64), remaining_tokens(offsets)
    prefixes: NDArray[np.int64] | None = None
    if order > 1:
        shorter = ngram_keys(flat, remaining, order - 1, ranks[tokens] if order > 2 else None, base)
        prefixes = ranks[tokens] = tables[-1].ranks(shorter)
    keys = ngram_keys(flat, remaining, order, prefixes, base)
    return np.unique(keys[keys >= 0], return_counts=True)


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


def _spill(run: Run, path: Path) -> Run:
    keys, counts = run
    np.save(f"{path}.keys.npy", keys)
    np.save(f"{path}.counts.npy", counts)
    keys, counts = (np.load(f"{path}.{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("keys", "counts"))
    return keys, counts


def _merged(runs: list[Run], size: int) -> Iterator[Run]:
    """Merge sorted runs; yield the result in the order of keys, in parts of about `size` keys."""
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
    order = np.argsort(keys)
    keys, counts = keys[order], np.concatenate([counts for _, counts in runs])[order]
    firsts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else np.empty(0, np.int64)
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

    def log_shares(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return log(count / total) f64[n] of each rank; NaN for rank -1."""
        if not len(self.keys):
            return np.full(len(ranks), np.nan)
        shares = np.log(self.counts[np.maximum(ranks, 0)]) - np.log(self.total)
        return np.where(ranks >= 0, shares, np.nan)


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

        NaN if the n-gram was not counted, was dropped, or leaves the text.
        """
        flat, remaining = ids.astype(np.int64), remaining_tokens(offsets)
        ranks: NDArray[np.int64] | None = None
        for order, table in enumerate(self.tables, start=1):
            ranks = table.ranks(ngram_keys(flat, remaining, order, ranks, self.base))
            yield table.log_shares(ranks)


# Measured peak of a pair of tokens: keys, counts, sort order and copies.
_BYTES_PER_PAIR = 96
# The standard deviation of BERT's own initial embeddings.
_UNSEEN_STD = 0.02


def log_frequencies(store: TokenStore, *, vocab_size: int) -> NDArray[np.float32]:
    """Return the log of each token's share of the store, f32[vocab_size]; a token that never occurs counts as half."""
    _check_ids(store, vocab_size)
    counts = np.bincount(store.flat_ids, minlength=vocab_size) + 0.5
    return np.asarray(np.log(counts / counts.sum()), dtype=np.float32)


def ppmi_svd(
    store: TokenStore,
    *,
    vocab_size: int,
    dim: int,
    seed: int,
    window: int = 8,
    smoothing: float = 0.75,
    power: float = 0.5,
    std: float = 0.05,
    folder: Path | None = None,
    memory_mb: int = 256,
) -> NDArray[np.float32]:
    """Return embeddings f32[vocab_size, dim] in which tokens with similar contexts are close.

    Co-occurrences are counted up to `window` tokens apart within a text. Context frequencies are raised to `smoothing`,
    singular values to `power`, and the result is scaled to standard deviation `std`. Special tokens and those that
    never occur get small random rows. The same store and seed give the same matrix. folder: where co-occurrences are
    written while they are counted and factored (None: the system's temporary folder); memory_mb: approximate memory
    limit of counting in MiB. Neither affects the result.

    Raises DrkitError if the store has ids beyond `vocab_size`, or too few tokens occur for `dim`.
    """
    from scipy.sparse.linalg import LinearOperator, svds

    _check_ids(store, vocab_size)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pairs-") as scratch:
        sums = _count_pairs(store, vocab_size, window, Path(scratch), memory_mb)
        matrix, used = _ppmi(Path(scratch), sums, smoothing, memory_mb)
        if dim >= len(used):
            raise DrkitError(
                f"only {len(used)} tokens co-occur with others: too few for embeddings of {dim} dimensions; use more "
                f"texts, a smaller encoder.hidden, or random embeddings: --set encoder.init_embeddings=random"
            )
        rng = np.random.default_rng(seed)
        out = rng.normal(0.0, _UNSEEN_STD, (vocab_size, dim)).astype(np.float32)
        start = rng.uniform(0.5, 1.0, len(used)).astype(np.float32)

        def product(of: Any) -> Any:
            """Return the product of used rows and columns with f32[used] or f32[used, k]; the matrix stays on disk."""

            def multiply(vectors: Any) -> Any:
                padded = np.zeros((vocab_size, *vectors.shape[1:]), np.float32)
                padded[used] = vectors
                return (of @ padded)[used]

            return multiply

        ahead, back = product(matrix), product(matrix.T)
        parts = {"matvec": ahead, "matmat": ahead, "rmatvec": back, "rmatmat": back}
        vectors, values, _ = svds(LinearOperator((len(used), len(used)), dtype=np.float32, **parts), k=dim, v0=start)
    # svds gives the smallest of the `dim` values first.
    rows = (vectors * np.maximum(values, 0) ** power)[:, ::-1]
    out[used] = rows * (std / max(float(rows.std()), 1e-12))
    return out


def _check_ids(store: TokenStore, vocab_size: int) -> None:
    highest = int(store.flat_ids.max(initial=-1))
    if highest >= vocab_size:
        raise DrkitError(f"the store has token {highest}, beyond a vocabulary of {vocab_size}; tokenise it again")


def _count_pairs(store: TokenStore, vocab_size: int, window: int, scratch: Path, memory_mb: int) -> NDArray[np.float64]:
    """Count how often two tokens are at most `window` apart in a text; returns the sum f64[vocab_size] of each token.

    Writes pairs.arrow to `scratch`: keys (token * vocab_size + other token), sorted, each pair in both orders.
    """
    chunk = max(memory_mb * 2**20 // (_BYTES_PER_PAIR * window), 1)
    runs = [
        _spill(_pair_run(store, texts, vocab_size, window), scratch / str(number))
        for number, texts in enumerate(text_chunks(store.offsets, chunk))
    ]
    sums = np.zeros(vocab_size)
    with ArrayWriter(scratch / "pairs.arrow", {"keys": np.int64, "counts": np.int64}) as writer:
        for keys, counts in _merged(runs, _pairs_at_once(memory_mb)):
            sums += np.bincount(keys // vocab_size, weights=counts, minlength=vocab_size)
            writer.append(keys=keys, counts=counts)
    return sums


def _pairs_at_once(memory_mb: int) -> int:
    return max(memory_mb * 2**20 // _BYTES_PER_PAIR, 1)


def _pair_run(store: TokenStore, texts: tuple[int, int], vocab_size: int, window: int) -> Run:
    """Count the pairs of a range of texts."""
    offsets = store.offsets[texts[0] : texts[1] + 1]
    flat, remaining = store.flat_ids[offsets[0] : offsets[-1]], remaining_tokens(offsets)
    found = [np.empty(0, np.int64)]
    for distance in range(1, window + 1):
        starts = np.flatnonzero(remaining > distance)
        one, other = flat[starts], flat[starts + distance]
        found.append(np.minimum(one, other).astype(np.int64) * vocab_size + np.maximum(one, other))
    keys, counts = np.unique(np.concatenate(found), return_counts=True)
    rows, columns = np.divmod(keys, vocab_size)
    # A token beside itself counts twice, as one order and the other; other pairs are unique, and need no adding up.
    keys = np.concatenate([keys, (columns * vocab_size + rows)[rows != columns]])
    counts = np.concatenate([np.where(rows == columns, 2 * counts, counts), counts[rows != columns]])
    order = np.argsort(keys)
    return keys[order], counts[order]


def _ppmi(scratch: Path, sums: NDArray[np.float64], smoothing: float, memory_mb: int) -> tuple[Any, NDArray[np.int64]]:
    """Return the positive PMI as a sparse matrix [V,V] in a mapped file, and the rows i64[n] that are not empty.

    It is symmetric: the mean over which of two tokens is the context. sums: f64[V] of pairs.arrow in `scratch`.
    """
    from scipy.sparse import csr_matrix

    pairs, size, vocab_size = Arrays(scratch / "pairs.arrow"), _pairs_at_once(memory_mb), len(sums)
    total = sums.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        log_word = np.log(sums / total)
        log_context = np.log(sums**smoothing / (sums**smoothing).sum())
    mean = (log_word + log_context) / 2
    lengths = np.zeros(vocab_size, np.int64)
    with ArrayWriter(scratch / "ppmi.arrow", {"values": np.float32, "columns": np.int32}) as writer:
        for start in range(0, len(pairs["keys"]), size):
            rows, columns = np.divmod(pairs["keys"][start : start + size], vocab_size)
            counts = pairs["counts"][start : start + size].astype(np.float32)
            values = np.log(counts / total) - mean[rows] - mean[columns]
            kept = values > 0
            writer.append(values=values[kept], columns=columns[kept])
            lengths += np.bincount(rows[kept], minlength=vocab_size)
    entries = Arrays(scratch / "ppmi.arrow")
    starts = np.concatenate([[0], np.cumsum(lengths)])
    matrix = csr_matrix((entries["values"], entries["columns"], starts), shape=(vocab_size, vocab_size), copy=False)
    return matrix, np.flatnonzero(lengths)
