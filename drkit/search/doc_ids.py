"""Document ids by position, and the Arrow files that store them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drkit.core.files import replacing
from drkit.data.corpus import find_ids, id_hash
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

COLUMN = "doc_id"


class DocIds:
    """Document ids by position, stored in Arrow memory; the first `find` hashes all of them, 16 bytes per id.

    >>> ids = DocIds.of(["a", "b c", "é"])
    >>> ids.take(np.array([2, 0])), ids.find(["b c", "none"]).tolist()
    (['é', 'a'], [1, -1])
    """

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    @classmethod
    def of(cls, doc_ids: DocIds | Iterable[str]) -> DocIds:
        """Return `DocIds` of any iterable of ids."""
        if isinstance(doc_ids, DocIds):
            return doc_ids
        return cls(pa.chunked_array([pa.array(list(doc_ids), type=pa.large_string())]))

    @classmethod
    def read(cls, paths: Sequence[Path]) -> DocIds:
        """Memory-map the ids of several files, in order. Raises OSError or ArrowException."""
        chunks = [chunk for path in paths for chunk in read_id_table(path).column(COLUMN).chunks]
        return cls(pa.chunked_array(chunks, type=pa.large_string()))

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, position: int) -> str:
        return str(self._column[position].as_py())

    def write(self, path: Path) -> None:
        """Write the ids as an Arrow file with one column, `doc_id`."""
        write_id_table(path, self._column)

    def take(self, positions: NDArray[np.int64]) -> list[str]:
        """Return the ids at these positions, in order."""
        taken: list[str] = self._column.take(pa.array(positions)).to_pylist()
        return taken

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the position i64[n] of each id, or -1 if it is unknown."""
        return find_ids(doc_ids, *self._sorted_hashes, self.take)

    def check_unique(self) -> None:
        """Raise DrkitError for a duplicate id."""
        if pc.count_distinct(self._column).as_py() < len(self):
            counts = pc.value_counts(self._column)
            duplicate = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"].as_py()
            raise DrkitError(f"duplicate document id {duplicate!r}; every document needs its own id")

    @cached_property
    def _sorted_hashes(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        hashes = np.empty(len(self), dtype=np.uint64)
        done = 0
        for chunk in self._column.chunks:
            for start in range(0, len(chunk), 65_536):
                names = chunk.slice(start, 65_536).to_pylist()
                hashes[done : done + len(names)] = list(map(id_hash, names))
                done += len(names)
        positions = np.argsort(hashes, kind="stable")
        return hashes[positions], positions


def write_id_table(path: Path, column: Any, metadata: Mapping[str, str] | None = None) -> None:
    """Write one column `doc_id` as an Arrow file, atomically; metadata: plain text stored with it."""
    table = pa.table({COLUMN: column}).replace_schema_metadata(dict(metadata or {}))
    with (
        replacing(path) as temporary,
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)


def read_id_table(path: Path) -> Any:
    """Memory-map the table in an Arrow file. Raises OSError or ArrowException."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
