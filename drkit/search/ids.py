"""Document ids as an Arrow column: mapped from disk, taken by place, found by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drkit.core.files import replacing
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMN = "doc_id"


class DocIds:
    """Ids by place. They stay in Arrow's memory; the first `find` hashes them once, 16 bytes an id.

    >>> ids = DocIds.of(["a", "b c", "é"])
    >>> ids.take(np.array([2, 0])), ids.find(["b c", "none"]).tolist()
    (['é', 'a'], [1, -1])
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    @classmethod
    def of(cls, doc_ids: DocIds | Iterable[str]) -> DocIds:
        """Those of any sequence."""
        if isinstance(doc_ids, DocIds):
            return doc_ids
        return cls(pa.chunked_array([pa.array(list(doc_ids), type=pa.large_string())]))

    @classmethod
    def read(cls, paths: Sequence[Path]) -> DocIds:
        """Those of several files, one after another, memory-mapped. Raises OSError or ArrowException."""
        chunks = [chunk for path in paths for chunk in read_table(path).column(COLUMN).chunks]
        return cls(pa.chunked_array(chunks, type=pa.large_string()))

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, place: int) -> str:
        return str(self._column[place].as_py())

    def write(self, path: Path) -> None:
        """Write them as an Arrow file with one column, `doc_id`."""
        write_table(path, self._column)

    def take(self, places: NDArray[np.int64]) -> list[str]:
        """The ids at these places, in their order."""
        taken: list[str] = self._column.take(pa.array(places)).to_pylist()
        return taken

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """i64[n]: the places of these ids, -1 where there is none."""
        hashes, places = self._sorted
        asked = np.fromiter(map(_hash, doc_ids), dtype=np.uint64, count=len(doc_ids))
        slots = np.minimum(np.searchsorted(hashes, asked), len(hashes) - 1)
        found = np.where(hashes[slots] == asked, places[slots], -1)
        held = self.take(np.maximum(found, 0))
        for at in [i for i, name in enumerate(held) if found[i] >= 0 and name != doc_ids[i]]:
            same = places[slots[at] : int(np.searchsorted(hashes, asked[at], side="right"))].tolist()
            found[at] = next((place for place in same if self[place] == doc_ids[at]), -1)
        return found

    def check_unique(self) -> None:
        """Raises DrkitError where an id stands twice."""
        if pc.count_distinct(self._column).as_py() < len(self):
            counts = pc.value_counts(self._column)
            twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
            raise DrkitError(f"the document id {twice!r} stands twice; ids must differ")

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        hashes = np.empty(len(self), dtype=np.uint64)
        at = 0
        for chunk in self._column.chunks:
            for batch in range(0, len(chunk), 65_536):
                names = chunk.slice(batch, 65_536).to_pylist()
                hashes[at : at + len(names)] = list(map(_hash, names))
                at += len(names)
        places = np.argsort(hashes, kind="stable")
        return hashes[places], places


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def write_table(path: Path, column: Any, metadata: Mapping[str, str] | None = None) -> None:
    """One column `doc_id` as an Arrow file, atomically; metadata: plain text beside it."""
    table = pa.table({COLUMN: column}).replace_schema_metadata(dict(metadata or {}))
    with (
        replacing(path) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)


def read_table(path: Path) -> Any:
    """The table in an Arrow file, memory-mapped. Raises OSError or ArrowException."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
