"""Initial word embeddings from counts: a truncated SVD of the PPMI matrix of tokens that occur near each other.

Levy and Goldberg 2014 (the factorisation); Levy, Goldberg and Dagan 2015 (smoothed contexts, powers of the singular
values). Takes seconds, and gives a small encoder a better start than random embeddings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.data.ngrams import remaining_tokens, text_chunks
from drkit.data.store import TokenStore
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TOKENS_AT_ONCE = 1 << 22
# The standard deviation of BERT's own initial embeddings.
_UNSEEN_STD = 0.02


def log_frequencies(store: TokenStore, *, vocab_size: int) -> NDArray[np.float32]:
    """Return the log of each token's share of the store, f32[vocab_size]; a token that never occurs counts as half."""
    _check(store, vocab_size)
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
) -> NDArray[np.float32]:
    """Return embeddings f32[vocab_size, dim] in which tokens with similar contexts are close.

    Co-occurrences are counted up to `window` tokens apart within a text. Context frequencies are raised to `smoothing`,
    singular values to `power`, and the result is scaled to standard deviation `std`. Special tokens and those that
    never occur get small random rows. The same store and seed give the same matrix.

    Raises DrkitError if the store has ids beyond `vocab_size`, or too few tokens occur for `dim`.
    """
    from scipy.sparse.linalg import svds

    _check(store, vocab_size)
    matrix = _ppmi(_cooccurrences(store, vocab_size, window), smoothing)
    used = np.flatnonzero(np.diff(matrix.indptr))
    if dim >= len(used):
        raise DrkitError(
            f"only {len(used)} tokens co-occur with others: too few for embeddings of {dim} dimensions; use more "
            f"texts, a smaller encoder.hidden, or random embeddings: --set encoder.init_embeddings=random"
        )
    rng = np.random.default_rng(seed)
    out = rng.normal(0.0, _UNSEEN_STD, (vocab_size, dim)).astype(np.float32)
    start = rng.uniform(0.5, 1.0, len(used)).astype(np.float32)
    vectors, values, _ = svds(matrix[used][:, used], k=dim, v0=start)
    # svds gives the smallest of the `dim` values first.
    rows = (vectors * np.maximum(values, 0) ** power)[:, ::-1]
    out[used] = rows * (std / max(float(rows.std()), 1e-12))
    return out


def _check(store: TokenStore, vocab_size: int) -> None:
    highest = int(store.flat_ids.max(initial=-1))
    if highest >= vocab_size:
        raise DrkitError(f"the store has token {highest}, beyond a vocabulary of {vocab_size}; tokenise it again")


def _cooccurrences(store: TokenStore, vocab_size: int, window: int) -> Any:
    """Sparse symmetric [vocab_size, vocab_size]: how often two tokens are at most `window` apart in a text."""
    from scipy.sparse import coo_matrix

    shape = (vocab_size, vocab_size)
    empty = np.empty(0, np.int32)
    total: Any = coo_matrix((np.empty(0, np.float32), (empty, empty)), shape=shape).tocsr()
    for first, last in text_chunks(store.offsets, _TOKENS_AT_ONCE):
        offsets = store.offsets[first : last + 1]
        flat, remaining = store.flat_ids[offsets[0] : offsets[-1]], remaining_tokens(offsets)
        for distance in range(1, window + 1):
            starts = np.flatnonzero(remaining > distance)
            pairs = coo_matrix((np.ones(len(starts), np.float32), (flat[starts], flat[starts + distance])), shape=shape)
            total = total + pairs.tocsr()
    return total + total.T


def _ppmi(counts: Any, smoothing: float) -> Any:
    """Positive pointwise mutual information, symmetric: the mean over which of two tokens is the context."""
    from scipy.sparse import csr_matrix

    pairs = counts.tocoo()
    sums = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    with np.errstate(divide="ignore"):
        log_word = np.log(sums / sums.sum())
        log_context = np.log(sums**smoothing / (sums**smoothing).sum())
    mean = (log_word + log_context) / 2
    values = np.log(pairs.data / sums.sum()) - mean[pairs.row] - mean[pairs.col]
    kept = values > 0
    entries = values[kept].astype(np.float32), (pairs.row[kept], pairs.col[kept])
    return csr_matrix(entries, shape=counts.shape)
