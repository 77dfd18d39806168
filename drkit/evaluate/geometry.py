"""Geometry of embeddings: do vectors spread over the space, or crowd into one direction?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def anisotropy(vectors: NDArray[np.float32]) -> float:
    """Return the mean cosine of two different vectors of f[n,D]: 0 if they spread evenly, 1 if all have one direction.

    NaN for fewer than two vectors. A zero vector has cosine 0 with every other vector.

    Source: Ethayarajh 2019, section 4.1 (over all pairs instead of a random sample).

    >>> anisotropy(np.array([[1.0, 0.0], [0.0, 2.0]])), anisotropy(np.array([[1.0, 1.0], [3.0, 3.0]]))
    (0.0, 1.0)
    """
    count = len(vectors)
    if count < 2:
        return float("nan")
    rows = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    own = float((units**2).sum())  # the cosines of vectors with themselves
    return round((float((units.sum(0) ** 2).sum()) - own) / (count * (count - 1)), 12)


def top_direction(vectors: NDArray[np.float32]) -> float:
    """Return the share of the variance of f[n,D] around its mean in one direction: 1/D at best, 1 at worst.

    Unlike `anisotropy`, it ignores a common offset: vectors may share a mean and still spread around it. NaN if all
    vectors are equal.

    >>> top_direction(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]))
    1.0
    """
    rows = np.asarray(vectors, dtype=np.float64)
    centred = rows - rows.mean(0)
    spectrum = np.linalg.svd(centred, compute_uv=False) ** 2
    total = float(spectrum.sum())
    return round(float(spectrum[0]) / total, 12) if total > 0 else float("nan")
