"""Look up ids by their sorted 64-bit hashes: 16 bytes per id, in memory or memory-mapped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def id_hash(identifier: str) -> int:
    """Return a 64-bit hash of an id."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(), digest_size=8).digest(), "little")


def find_ids(
    ids: Sequence[str],
    hashes: NDArray[np.uint64],
    indices: NDArray[np.int64],
    ids_at: Callable[[NDArray[np.int64]], Sequence[str]],
) -> NDArray[np.int64]:
    """Return the index i64[n] of each id, or -1 if it is unknown.

    hashes: of all known ids, sorted; indices: the index of the id behind each hash; ids_at: returns the ids at indices.

    >>> known = ["b", "a"]
    >>> hashes = np.array([id_hash(name) for name in known], dtype=np.uint64)
    >>> order = np.argsort(hashes)
    >>> find_ids(["a", "c"], hashes[order], order, lambda indices: [known[i] for i in indices]).tolist()
    [1, -1]
    """
    sought = np.fromiter(map(id_hash, ids), dtype=np.uint64, count=len(ids))
    slots = np.minimum(np.searchsorted(hashes, sought), len(hashes) - 1)
    found = np.where(hashes[slots] == sought, indices[slots], -1)
    hits = np.flatnonzero(found >= 0)
    for i, name in zip(hits.tolist(), ids_at(found[hits]), strict=True):
        if name != ids[i]:  # several ids share this hash
            same = np.asarray(indices[slots[i] : int(np.searchsorted(hashes, sought[i], side="right"))])
            found[i] = next((index for index, other in zip(same, ids_at(same), strict=True) if other == ids[i]), -1)
    return found
