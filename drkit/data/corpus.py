"""Passages on disk, memory-mapped: read by index, or by id through sorted 64-bit hashes (16 bytes per passage)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from drkit.core.types import Passage
from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.ids import find_ids
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXTS, INDEX = "texts.arrow", "ids.arrow"
# The columns of `ids.arrow`; the second has its name from the first version of the format.
_HASHES, _INDICES = "hashes", "places"
_SHOWN = 5


def write_index(hashes: NDArray[np.uint64], folder: Path) -> None:
    """Write the index of the passages whose ids have these hashes, in the order of the passages."""
    order = np.argsort(hashes, kind="stable")
    with ArrayWriter(folder / INDEX, {_HASHES: np.uint64, _INDICES: np.int64}) as writer:
        writer.append(**{_HASHES: hashes[order], _INDICES: order})


class MappedTable:
    """A memory-mapped Arrow file of several record batches, read as a stream of rows or by row indices.

    Raises DrkitError if the file is missing or not an Arrow file.
    """

    def __init__(self, path: Path) -> None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            self.batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except (OSError, pa.ArrowException) as error:
            raise DrkitError(f"{path}: cannot be read as an Arrow file ({error}); run its stage again") from None
        self.starts = np.cumsum([0, *(batch.num_rows for batch in self.batches)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield every row."""
        for batch in self.batches:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def take(self, indices: NDArray[np.int64]) -> list[tuple[Any, ...]]:
        """Return the rows at these indices, in this order."""
        batch_of = self._batch_of(indices)
        out: list[tuple[Any, ...]] = [()] * len(indices)
        for number in np.unique(batch_of):
            positions = np.flatnonzero(batch_of == number)
            taken = self.batches[number].take(pa.array(indices[positions] - self.starts[number]))
            rows = zip(*(column.to_pylist() for column in taken.columns), strict=True)
            for position, row in zip(positions, rows, strict=True):
                out[position] = row
        return out

    def take_first_column(self, indices: NDArray[np.int64]) -> list[Any]:
        """Return the values of the first column at these indices, in this order; reads no other column."""
        batch_of = self._batch_of(indices)
        rows = (indices - self.starts[batch_of]).tolist()
        return [self.batches[n].column(0)[row].as_py() for n, row in zip(batch_of.tolist(), rows, strict=True)]

    def _batch_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.starts, indices, side="right") - 1


class StoredCorpus:
    """Passages on disk, read by index and by id; picklable, each process maps the files itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._table = MappedTable(self.folder / TEXTS)
        index = Arrays(self.folder / INDEX)
        self._hashes: NDArray[np.uint64] = index[_HASHES]
        self._indices: NDArray[np.int64] = index[_INDICES]

    def __reduce__(self) -> tuple[type[StoredCorpus], tuple[Path]]:
        return StoredCorpus, (self.folder,)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Passage]:
        return (Passage(doc_id, text, title) for doc_id, title, text in self._table.rows())

    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids, in this order. Raises DrkitError for an unknown id."""
        return self.at(self.positions(doc_ids))

    def at(self, indices: Sequence[int] | NDArray[np.int64]) -> list[Passage]:
        """Return the passages at these indices, in this order."""
        rows = self._table.take(np.asarray(indices, dtype=np.int64))
        return [Passage(doc_id, text, title) for doc_id, title, text in rows]

    @cached_property
    def doc_ids(self) -> list[str]:
        """The ids of all passages, in the order of the passages."""
        return [doc_id for batch in self._table.batches for doc_id in batch.column("doc_id").to_pylist()]

    def positions(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index i64[n] of each id. Raises DrkitError for an unknown id."""
        indices = self.find(doc_ids)
        if (indices < 0).any():
            unknown = [doc_ids[int(i)] for i in np.flatnonzero(indices < 0)[:_SHOWN]]
            raise DrkitError(
                f"{self.folder}: unknown passage {', '.join(map(repr, unknown))}; use the ids of the collection"
            )
        return indices

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index i64[n] of each id, or -1 if it is unknown."""
        return find_ids(doc_ids, self._hashes, self._indices, self._table.take_first_column)

    def duplicates(self) -> Iterator[tuple[str, int, int]]:
        """Yield (id, first index, later index) of every id that occurs twice."""
        for slot in np.flatnonzero(self._hashes[1:] == self._hashes[:-1]):
            pair = np.asarray(self._indices[slot : slot + 2])
            first, later = self._table.take_first_column(pair)
            if first == later:
                yield first, int(pair[0]), int(pair[1])
