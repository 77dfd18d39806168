"""Passages on disk, mapped: by place, and by id through a sorted index of 64-bit hashes (16 bytes a passage)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from drkit.core.types import Passage
from drkit.data.arrays import Arrays, ArrayWriter
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXTS, INDEX = "texts.arrow", "ids.arrow"
_SHOWN = 5


def id_hash(identifier: str) -> int:
    """64 bits that stand for an id."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(), digest_size=8).digest(), "little")


def write_index(hashes: NDArray[np.uint64], folder: Path) -> None:
    """Write the index of the passages whose ids have these hashes, in their order."""
    order = np.argsort(hashes, kind="stable")
    with ArrayWriter(folder / INDEX, {"hashes": np.uint64, "places": np.int64}) as writer:
        writer.append(hashes=hashes[order], places=order)


class MappedTable:
    """A memory-mapped Arrow file of several record batches, read row by row or by places."""

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
        """Every row."""
        for batch in self.batches:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def take(self, places: NDArray[np.int64]) -> list[tuple[Any, ...]]:
        """The rows at these places, in their order."""
        which = np.searchsorted(self.starts, places, side="right") - 1
        out: list[tuple[Any, ...]] = [()] * len(places)
        for number in np.unique(which):
            mine = np.flatnonzero(which == number)
            taken = self.batches[number].take(pa.array(places[mine] - self.starts[number]))
            for place, row in zip(mine, zip(*(c.to_pylist() for c in taken.columns), strict=True), strict=True):
                out[place] = row
        return out


class StoredCorpus:
    """Passages on disk, by place and by id; picklable, each process maps the files itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._table = MappedTable(self.folder / TEXTS)
        self._index = Arrays(self.folder / INDEX)

    def __reduce__(self) -> tuple[type[StoredCorpus], tuple[Path]]:
        return StoredCorpus, (self.folder,)

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Passage]:
        return (Passage(doc_id, text, title) for doc_id, title, text in self._table.rows())

    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """The passages of these ids, in their order. Raises DrkitError at an unknown id."""
        return self.at(self.positions(doc_ids))

    def at(self, places: Sequence[int] | NDArray[np.int64]) -> list[Passage]:
        """The passages at these places, in their order."""
        rows = self._table.take(np.asarray(places, dtype=np.int64))
        return [Passage(doc_id, text, title) for doc_id, title, text in rows]

    @cached_property
    def doc_ids(self) -> list[str]:
        """The ids of all passages, by place."""
        return [doc_id for batch in self._table.batches for doc_id in batch.column("doc_id").to_pylist()]

    def positions(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """i64[n]: the places of these ids. Raises DrkitError at an unknown id."""
        places = self.find(doc_ids)
        if (places < 0).any():
            unknown = [doc_ids[int(i)] for i in np.flatnonzero(places < 0)[:_SHOWN]]
            raise DrkitError(
                f"{self.folder}: no passage {', '.join(map(repr, unknown))}; ids are those of the collection"
            )
        return places

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """i64[n]: the places of these ids, -1 where there is none."""
        asked = np.array([id_hash(doc_id) for doc_id in doc_ids], dtype=np.uint64)
        slots = np.searchsorted(self._index["hashes"], asked)
        slots = np.minimum(slots, len(self) - 1)
        hit = self._index["hashes"][slots] == asked
        places = np.where(hit, self._index["places"][slots], -1)
        # A passage whose id has another's hash is one step on; 64 bits make that a curiosity, not a cost.
        for i in np.flatnonzero(hit):
            if self._id_at(places[i]) != doc_ids[int(i)]:
                places[i] = next((p for p in self._same_hash(slots[i]) if self._id_at(p) == doc_ids[int(i)]), -1)
        return places

    def _same_hash(self, slot: int) -> NDArray[np.int64]:
        hashes = self._index["hashes"]
        stop = int(np.searchsorted(hashes, hashes[slot], side="right"))
        return np.asarray(self._index["places"][slot:stop])

    def _id_at(self, place: int) -> str:
        which = int(np.searchsorted(self._table.starts, place, side="right")) - 1
        text: str = self._table.batches[which].column(0)[int(place - self._table.starts[which])].as_py()
        return text

    def duplicates(self) -> Iterator[tuple[str, int, int]]:
        """(id, first place, later place) of every id that stands there twice."""
        hashes = self._index["hashes"]
        for slot in np.flatnonzero(hashes[1:] == hashes[:-1]):
            first, later = (int(p) for p in self._index["places"][slot : slot + 2])
            if self._id_at(first) == self._id_at(later):
                yield self._id_at(first), first, later
