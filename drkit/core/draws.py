"""Counter-based random numbers: the draws of an example depend only on (seed, epoch, example), not on its batch.

Masks are therefore the same for any number of workers and ranks, any batch composition and padding, and in resumed
runs. Each number comes from a hash (splitmix64's finaliser over Weyl sequences) of seed, epoch, example key, call and
index. Indices are hashed axis by axis, so extending an axis keeps the existing numbers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1 << 14  # hashes computed at once: with their scratch memory they fit the second-level cache


class Draws:
    """Random arrays for one batch: row b of each depends on (seed, epoch, keys[b]) and the number of earlier calls.

    keys: i64[B], the permanent numbers of the examples (their indices in the store). The value at an index does not
    depend on the sizes of the axes: `uniform(3)` begins like `uniform(5)`. progress: the optimizer steps already made,
    as a share of those planned, in [0, 1]. No number depends on it; what a masker makes of them may.

    >>> a = Draws(seed=1, epoch=0, keys=[7, 8]).uniform(2, 3)
    >>> b = Draws(seed=1, epoch=0, keys=[8]).uniform(4, 9)
    >>> a.shape, bool((a[1] == b[0, :2, :3]).all())
    ((2, 2, 3), True)
    """

    def __init__(self, seed: int, epoch: int, keys: ArrayLike, progress: float = 0.0) -> None:
        self.progress = progress
        examples = np.asarray(keys, dtype=np.int64).astype(np.uint64)
        stream = _mix(np.array([seed], dtype=np.int64).astype(np.uint64))
        stream = _mix(stream + np.array([epoch], dtype=np.int64).astype(np.uint64))
        self._keys = _mix(stream + examples * _WEYL)
        self._calls = 0

    def __len__(self) -> int:
        return len(self._keys)

    def uniform(self, *shape: int) -> NDArray[np.float32]:
        """Return f32[B, *shape] in [0, 1), in steps of 2**-24 (two numbers per hash)."""
        halves = self._cut(np.uint32, shape)
        halves >>= np.uint32(8)
        return halves.astype(np.float32) * np.float32(2**-24)

    def coins(self, share: float, *shape: int) -> NDArray[np.bool_]:
        """Return bool[B, *shape], True with probability `share`, rounded to 2**-16 (four numbers per hash)."""
        limit = round(share * 2**16)
        if limit >= 2**16:
            self._calls += 1
            return np.ones((len(self), *shape), dtype=np.bool_)
        return self._cut(np.uint16, shape) < np.uint16(max(0, limit))

    def normal(self, *shape: int) -> NDArray[np.float32]:
        """Return f32[B, *shape], standard normal (Box-Muller: each hash gives two uniforms, and so two normals)."""
        length = shape[-1] if shape else 1
        even = self._cut(np.uint32, (*shape[:-1], length + length % 2))
        flat = even.reshape(-1)
        out = np.empty(flat.shape, dtype=np.float32)
        for at in range(0, len(flat), _BLOCK):
            _box_muller(flat[at : at + _BLOCK], out[at : at + _BLOCK])
        return out.reshape(even.shape)[..., :length].reshape(len(self), *shape)

    def integers(self, high: int, *shape: int) -> NDArray[np.int64]:
        """Return i64[B, *shape] in [0, high)."""
        bits = self._cut(np.uint64, shape) >> np.uint64(11)
        return (bits % np.uint64(high)).astype(np.int64)

    def _cut(self, kind: type[np.unsignedinteger], shape: tuple[int, ...]) -> NDArray[np.unsignedinteger]:
        """Return kind[B, *shape]: hashes, each cut into pieces of `kind` along the last axis."""
        self._calls += 1
        streams = _mix(self._keys + np.uint64(self._calls))
        for size in shape[:-1]:
            streams = _mix(streams[..., None] + np.arange(1, size + 1, dtype=np.uint64) * _WEYL)
        length = shape[-1] if shape else 1
        pieces = 8 // np.dtype(kind).itemsize
        hashes = _hashes(streams.reshape(-1), -(-length // pieces))
        # Little-endian on every machine, so that the pieces of a hash come in the same order.
        cut = hashes.astype("<u8", copy=False).view(np.dtype(kind).newbyteorder("<"))
        return cut[:, :length].astype(kind, copy=False).reshape(len(self), *shape)


def _hashes(streams: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """Return u64[M, count], `count` hashes for each of the streams u64[M], computed in blocks that fit the cache."""
    out = np.empty((len(streams), count), dtype=np.uint64)
    steps = np.arange(1, count + 1, dtype=np.uint64) * _WEYL
    rows = max(1, _BLOCK // max(1, count))
    scratch = np.empty((rows, count), dtype=np.uint64)
    for at in range(0, len(streams), rows):
        block = out[at : at + rows]
        np.add(streams[at : at + rows, None], steps, out=block)
        _mix_in_place(block, scratch[: len(block)])
    return out


def _box_muller(pairs: NDArray[np.unsignedinteger], out: NDArray[np.float32]) -> None:
    """Write normals to out f32[2n], from 32-bit integers pairs[2n]: radii at even indices, angles at odd ones."""
    radius = (pairs[0::2].astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(np.maximum(radius, np.float32(0), out=radius), out=radius)
    angle = pairs[1::2].astype(np.float32) * np.float32(2 * math.pi * 2**-32)
    np.multiply(radius, np.cos(angle), out=out[0::2])
    np.multiply(radius, np.sin(angle), out=out[1::2])


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply splitmix64's finaliser (Steele, Lea and Flood 2014), elementwise and modulo 2**64."""
    out = values.copy()
    _mix_in_place(out, np.empty_like(out))
    return out


def _mix_in_place(out: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    out += _WEYL
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(out, np.uint64(shift), out=scratch)
        np.bitwise_xor(out, scratch, out=out)
        if factor != 1:
            np.multiply(out, np.uint64(factor), out=out)
