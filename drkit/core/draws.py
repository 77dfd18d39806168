"""Counter-based random numbers: (seed, epoch, example) -> that example's draw, whatever batch it is in.

A draw depends on nothing else, so workers, ranks, batch composition and resumed runs all see the same masks.
Each number is a hash (splitmix64's finaliser over Weyl sequences) of seed, epoch, example key, call and place.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_WEYL = np.uint64(0x9E3779B97F4A7C15)


class Draws:
    """Random arrays for one batch: row b of each depends on (seed, epoch, keys[b]) and the number of earlier calls.

    keys: i64[B], the examples' permanent numbers (their place in the store).

    >>> a = Draws(seed=1, epoch=0, keys=[7, 8]).uniform(3)
    >>> b = Draws(seed=1, epoch=0, keys=[8]).uniform(3)
    >>> a.shape, bool((a[1] == b[0]).all())
    ((2, 3), True)
    """

    def __init__(self, seed: int, epoch: int, keys: ArrayLike) -> None:
        examples = np.asarray(keys, dtype=np.int64).astype(np.uint64)
        stream = _mix(np.array([seed], dtype=np.int64).astype(np.uint64))
        stream = _mix(stream + np.array([epoch], dtype=np.int64).astype(np.uint64))
        self._keys = _mix(stream + examples * _WEYL)
        self._calls = 0

    def __len__(self) -> int:
        return len(self._keys)

    def _bits(self, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        self._calls += 1
        call = _mix(self._keys + np.uint64(self._calls))
        places = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * _WEYL
        return _mix(call[:, None] + places[None, :])

    def uniform(self, *shape: int) -> NDArray[np.float32]:
        """f32[B, *shape] in [0, 1)."""
        bits = self._bits(shape)
        bits >>= np.uint64(40)
        return (bits.astype(np.float32) * np.float32(2**-24)).reshape(len(self), *shape)

    def normal(self, *shape: int) -> NDArray[np.float32]:
        """f32[B, *shape], standard normal (Box-Muller: one hash gives a pair of 32-bit uniforms, and two normals)."""
        size = math.prod(shape)
        bits = self._bits(((size + 1) // 2,))
        radius = ((bits >> np.uint64(32)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
        angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float32) * np.float32(2 * math.pi * 2**-32)
        np.sqrt(np.float32(-2) * np.log(radius), out=radius)
        pair = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return pair[:, :size].reshape(len(self), *shape)

    def integers(self, high: int, *shape: int) -> NDArray[np.int64]:
        """i64[B, *shape] in [0, high)."""
        bits = self._bits(shape) >> np.uint64(11)
        return (bits % np.uint64(high)).astype(np.int64).reshape(len(self), *shape)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser (Steele, Lea and Flood 2014), elementwise and modulo 2**64."""
    out = values + _WEYL
    out ^= out >> np.uint64(30)
    out *= np.uint64(0xBF58476D1CE4E5B9)
    out ^= out >> np.uint64(27)
    out *= np.uint64(0x94D049BB133111EB)
    out ^= out >> np.uint64(31)
    return out
