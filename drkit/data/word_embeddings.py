"""Word embeddings from co-occurrences: a truncated SVD of the PPMI matrix of tokens that occur near each other.

Levy and Goldberg 2014, with the smoothed contexts and powers of singular values of Levy, Goldberg and Dagan 2015. They
take seconds, and give a small encoder a better start than random ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import LinearOperator, svds

from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.counts import remaining_tokens, text_chunks
from drkit.data.merging import CountedKeys, merge_on_disk, merged, sorted_with_positions, spill
from drkit.data.store import TokenStore
from drkit.errors import DrkitError

# Measured peak of a pair of tokens: keys, counts, sort order and copies.
_BYTES_PER_PAIR = 144
# Runs of pairs that are merged before there are more.
_RUNS = 64
_TOKENS_AT_ONCE = 1 << 22
# The standard deviation of BERT's own initial embeddings.
_UNSEEN_STD = 0.02


def log_frequencies(store: TokenStore, *, vocab_size: int) -> NDArray[np.float32]:
    """Return the log of each token's share of the store, f32[vocab_size]; a token that never occurs counts as half.

    Memory: a copy of 4 million ids, for a store of any size.
    """
    store.check_ids(vocab_size)
    counts = np.full(vocab_size, 0.5)
    for start in range(0, len(store.flat_ids), _TOKENS_AT_ONCE):
        counts += np.bincount(store.flat_ids[start : start + _TOKENS_AT_ONCE], minlength=vocab_size)
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
    written while they are counted and factored (None: a temporary folder); memory_mb: approximate memory
    limit of counting in MiB. Neither affects the result.

    Raises DrkitError if the store has ids beyond `vocab_size`, or too few tokens occur for `dim`.
    """
    store.check_ids(vocab_size)
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
        vectors, values, _ = svds(_used_rows_and_columns(matrix, used), k=dim, v0=start)
    # svds gives the smallest of the `dim` values first.
    rows = (vectors * np.maximum(values, 0) ** power)[:, ::-1]
    out[used] = rows * (std / max(float(rows.std()), 1e-12))
    return out


def _used_rows_and_columns(matrix: Any, used: NDArray[np.int64]) -> LinearOperator:
    """Return the used rows and columns of a sparse matrix [V,V] as an operator; the matrix stays on disk."""

    def product(of: Any) -> Any:
        def multiply(vectors: Any) -> Any:
            padded = np.zeros((matrix.shape[0], *vectors.shape[1:]), np.float32)
            padded[used] = vectors
            return (of @ padded)[used]

        return multiply

    ahead, back = product(matrix), product(matrix.T)
    products = {"matvec": ahead, "matmat": ahead, "rmatvec": back, "rmatmat": back}
    return LinearOperator((len(used), len(used)), dtype=np.float32, **products)


def _count_pairs(store: TokenStore, vocab_size: int, window: int, scratch: Path, memory_mb: int) -> NDArray[np.float64]:
    """Count how often two tokens are at most `window` apart in a text; returns the sum f64[vocab_size] of each token.

    Writes pairs.arrow to `scratch`: keys (token * vocab_size + other token), sorted, each pair in both orders.
    """
    chunk, at_once = max(memory_mb * 2**20 // (_BYTES_PER_PAIR * window), 1), _pairs_at_once(memory_mb)
    runs = []
    for number, texts in enumerate(text_chunks(store.offsets, chunk), start=1):
        pairs, pair_counts = _pair_run(store, texts, vocab_size, window)
        path = str(scratch / str(number))
        runs.append((spill(pairs, f"{path}.keys"), spill(pair_counts.astype(np.int32), f"{path}.counts")))
        if number % _RUNS == 0:  # they share most of their pairs
            runs[-_RUNS:] = [merge_on_disk(runs[-_RUNS:], f"{path}-merged", at_once)]
    sums = np.zeros(vocab_size)
    with ArrayWriter(scratch / "pairs.arrow", {"keys": np.int64, "counts": np.int64}) as writer:
        for keys, counts in merged(runs, at_once):
            sums += np.bincount(keys // vocab_size, weights=counts, minlength=vocab_size)
            writer.append(keys=keys, counts=counts)
    return sums


def _pairs_at_once(memory_mb: int) -> int:
    return max(memory_mb * 2**20 // _BYTES_PER_PAIR, 1)


def _pair_run(store: TokenStore, texts: tuple[int, int], vocab_size: int, window: int) -> CountedKeys:
    """Count the pairs of a range of texts."""
    offsets = store.offsets[texts[0] : texts[1] + 1]
    flat, remaining = store.flat_ids[offsets[0] : offsets[-1]].astype(np.int64), remaining_tokens(offsets)
    found = [np.empty(0, np.int64)]
    for distance in range(1, window + 1):
        starts = np.flatnonzero(remaining > distance)
        one, other = flat[starts], flat[starts + distance]
        found.append(np.minimum(one, other) * vocab_size + np.maximum(one, other))
    keys, counts = np.unique(np.concatenate(found), return_counts=True)
    rows, columns = np.divmod(keys, vocab_size)
    # A token beside itself counts twice, as one order and the other; other pairs are unique, and need no adding up.
    keys, order = sorted_with_positions(np.concatenate([keys, (columns * vocab_size + rows)[rows != columns]]))
    counts = np.concatenate([np.where(rows == columns, 2 * counts, counts), counts[rows != columns]])
    return keys, counts[order]


def _ppmi(scratch: Path, sums: NDArray[np.float64], smoothing: float, memory_mb: int) -> tuple[Any, NDArray[np.int64]]:
    """Return the positive PMI as a sparse matrix [V,V] in a mapped file, and the rows i64[n] that are not empty.

    It is symmetric: the mean over which of two tokens is the context. sums: f64[V] of pairs.arrow in `scratch`.
    """
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
