"""A matrix that lies in several files and is read where it is needed: opened, mapped, let go again.

Nothing is held between two reads. What a search of a corpus larger than memory has in memory is one block of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

from drkit.core.files import replacing
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS = ("npy", "safetensors")
TENSOR = "vectors"
BLOCK_BYTES = 2**26
_SAFE: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


@frozen
class ShardFile:
    """One file of vectors [rows, dimension]: float32 or float16, from byte `offset` on."""

    path: Path
    rows: int
    dimension: int
    dtype: np.dtype[Any]
    offset: int

    @classmethod
    def read(cls, path: Path) -> ShardFile:
        """From the head of a .npy or .safetensors file.

        Raises DrkitError where it is neither, cut off, or holds other numbers.
        """
        try:
            shape, dtype, offset = _safe_head(path) if path.suffix == ".safetensors" else _npy_head(path)
            rows, dimension = shape
            whole = path.stat().st_size >= offset + rows * dimension * dtype.itemsize
        except (OSError, ValueError, KeyError) as error:
            raise DrkitError(f"cannot read the vectors in {path}: {error}; encode them again") from error
        if dtype not in _SAFE.values() or not whole:
            why = "cut off" if not whole else f"of {dtype}, not float32 or float16"
            raise DrkitError(f"the vectors in {path} are {why}; encode them again")
        return cls(path, rows, dimension, dtype, offset)

    def open(self) -> NDArray[Any]:
        """The vectors, memory-mapped; the map goes with the array."""
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=(self.rows, self.dimension))


def _npy_head(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped.shape, mapped.dtype, int(mapped.offset)


def _safe_head(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("no safetensors file")
        tensor = json.loads(file.read(length))[TENSOR]
    return tuple(tensor["shape"]), _SAFE[tensor["dtype"]], 8 + length + int(tensor["data_offsets"][0])


def write_shard(path: Path, vectors: NDArray[Any]) -> None:
    """Write float32 or float16 [n,D] as a .npy or .safetensors file, atomically."""
    with replacing(path) as temporary:
        if path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            save_file({TENSOR: np.ascontiguousarray(vectors)}, temporary)
        else:
            with temporary.open("wb") as file:
                np.save(file, vectors, allow_pickle=False)


class Shards:
    """The rows of several files, one after another, sliced and gathered like one array.

    Raises DrkitError where the files differ in dimension or in dtype.
    """

    def __init__(self, files: Sequence[ShardFile]) -> None:
        self.files = tuple(files)
        kinds = {(file.dimension, file.dtype) for file in files}
        if len(kinds) != 1:
            raise DrkitError(f"{len(files)} shards of {len(kinds)} kinds (dimension, dtype); encode them again")
        ((dimension, self.dtype),) = kinds
        self._starts = np.cumsum([0, *(file.rows for file in files)])
        self.shape = (int(self._starts[-1]), dimension)
        self.ndim = 2

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Shards:
        """Of these files, in this order."""
        return cls([ShardFile.read(path) for path in paths])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, places: slice | NDArray[np.int64]) -> NDArray[Any]:
        if isinstance(places, slice):
            start, stop, _ = places.indices(len(self))
            parts = [block for _, block in self.blocks(max(1, stop - start), start, stop)]
            return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, self.shape[1]), self.dtype), *parts])
        return self._gather(np.asarray(places))

    def blocks(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
        """(place of its first row, rows) of each piece of at most so many rows; none crosses two files."""
        end = len(self) if stop is None else stop
        while start < end:
            which = int(np.searchsorted(self._starts, start, side="right")) - 1
            upto = min(start + rows, end, int(self._starts[which + 1]))
            first = int(self._starts[which])
            yield start, self.files[which].open()[start - first : upto - first]
            start = upto

    def _gather(self, places: NDArray[np.int64]) -> NDArray[Any]:
        out = np.empty((len(places), self.shape[1]), dtype=self.dtype)
        which = np.searchsorted(self._starts, places, side="right") - 1
        for number in np.unique(which).tolist():
            here = np.flatnonzero(which == number)
            out[here] = self.files[number].open()[places[here] - self._starts[number]]
        return out


def float32_blocks(vectors: Any) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(place, f32[n,D]) of an array or `Shards`: in pieces of 64 MB where something has to be read or converted."""
    rows = max(1, BLOCK_BYTES // (4 * vectors.shape[1]))
    if isinstance(vectors, Shards):
        pieces = vectors.blocks(rows)
    elif vectors.dtype == np.float32:
        pieces = iter([(0, vectors)])
    else:
        pieces = ((start, vectors[start : start + rows]) for start in range(0, len(vectors), rows))
    for start, piece in pieces:
        yield start, np.ascontiguousarray(piece, dtype=np.float32)
