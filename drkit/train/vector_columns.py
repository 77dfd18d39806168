"""Columns of vectors: what a teacher made of queries or passages, copied once and memory-mapped.

vectors.npy   vectors [n,D] of the queries or passages that a round may draw, in ascending order of their indices
items.arrow   those that have one: their indices, and their rows in `vectors.npy`

A batch reads its own rows, so memory stays flat for any number of vectors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from attrs import define, frozen
from numpy.typing import NDArray

from drkit.core.files import SCRATCH, replacing
from drkit.core.protocols import SignalTexts
from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.column_sources import DROP_UNKNOWN, REFUSE_UNKNOWN
from drkit.data.rows import batched
from drkit.errors import DrkitError
from drkit.search.vector_files import BY_ID, BY_ROW, VectorBlock, VectorSource, open_vectors, text_digest
from drkit.search.vectors import DocIds, ShardFile
from drkit.signals.specs import TextVectorsConfig

_Indices = NDArray[np.int64]

VECTOR_ITEMS = "items.arrow"
_VECTORS_FILE, _INFO = "vectors.npy", "column"
# Bytes that are written before the map of the file is released.
_MAPPED = 2**24
_AT_ONCE = 1024


@frozen
class VectorInfo:
    """What the vectors of a column are.

    source: where they are from. per: `query` or `passage`. unknown: `drop` if training leaves out what has none.
    """

    source: str
    per: str
    unknown: str = REFUSE_UNKNOWN


class StoredVectors:
    """The vectors of a column, memory-mapped; pickled as a path. `len` is the number of queries or passages with one.

    Raises DrkitError if a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        arrays = Arrays(self.folder / VECTOR_ITEMS)
        self._items, self._rows = arrays["items"], arrays["rows"]
        about = json.loads(arrays.metadata[_INFO])
        self.per, self.drops_unknown = str(about["per"]), about["unknown"] == DROP_UNKNOWN
        self._file = ShardFile.read(self.folder / _VECTORS_FILE)

    def __reduce__(self) -> tuple[type[StoredVectors], tuple[Path]]:
        return StoredVectors, (self.folder,)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return self._file.dimension

    def lacks(self, query_index: int, passages: _Indices) -> NDArray[np.bool_]:
        """Return which passages i64[n] of a query have no vector, bool[n]; of queries, the query's for all of them."""
        if self.per == "query":
            return np.repeat(~self._find(np.array([query_index]))[0], len(passages))
        return ~self._find(passages)[0]

    def take(self, items: _Indices) -> NDArray[np.float32]:
        """Return the vectors f32[n,D] of queries or passages i64[n], by index in the run.

        Raises DrkitError if one has no vector.
        """
        found, slots = self._find(items)
        if not found.all():
            index = int(items[int(np.flatnonzero(~found)[0])])
            raise DrkitError(f"the column of vectors in {self.folder} has none for {self.per} {index}")
        return self._file.take(self._rows[slots]).astype(np.float32)

    def _find(self, items: _Indices) -> tuple[NDArray[np.bool_], _Indices]:
        """Return which items i64[n] have a vector, and their slots among those that have one."""
        if not len(self._items):
            return np.zeros(len(items), dtype=bool), np.zeros(len(items), dtype=np.int64)
        slots = np.minimum(np.searchsorted(self._items, items), len(self._items) - 1)
        return self._items[slots] == items, slots


# Returns, for the keys of rows (ids or texts), the number of each row that is known and the index of its item.
Finder = Callable[[Sequence[str]], tuple[_Indices, _Indices]]


def finder_of_ids(find: Callable[[Sequence[str]], _Indices]) -> Finder:
    """Return a finder by id. find: returns the index of each id, or -1."""

    def found(keys: Sequence[str]) -> tuple[_Indices, _Indices]:
        indices = find(keys)
        rows = np.flatnonzero(indices >= 0)
        return rows, indices[rows]

    return found


def finder_of_texts(texts: Iterable[str]) -> Finder:
    """Return a finder by text: all items with the text of a row. texts: of all items, in order; 24 bytes each."""
    hashes = np.fromiter(map(text_digest, texts), dtype="S16")
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]

    def found(keys: Sequence[str]) -> tuple[_Indices, _Indices]:
        sought = np.array([text_digest(key) for key in keys], dtype="S16")
        starts, ends = (np.searchsorted(hashes, sought, side=side) for side in ("left", "right"))
        rows = np.repeat(np.arange(len(keys)), ends - starts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(ends - starts) - (ends - starts), ends - starts)
        return rows, order[np.repeat(starts, ends - starts) + within]

    return found


def write_vector_column(
    source: VectorSource, find: Finder, items: _Indices, folder: Path, info: VectorInfo, *, total: int
) -> dict[str, int]:
    """Write the vectors of items i64[n], ascending indices, into `folder`; returns counts.

    find: of ids or texts; rows in the order of the collection are those of all `total` queries or passages. Rows of
    other texts are passed over: a file may have those of all splits. Memory: 16 bytes per item, and a block of rows.

    Returns `vectors`, items with one; `missing`, items without; `unread`, rows of other texts.
    Raises DrkitError for vectors of different lengths, numbers that are not finite or no floats, two vectors of one
    item, another number of rows in the collection's order, or a file without a vector for any of them.
    """
    if source.by == BY_ROW and source.rows != total:
        raise DrkitError(
            f"{info.source} has {source.rows:,} vectors without ids, but the collection has {total:,} "
            f"{'queries' if info.per == 'query' else 'passages'} to match in order; give their ids beside them"
        )
    rows = np.full(len(items), -1, dtype=np.int64)
    unread = 0
    with replacing(folder / _VECTORS_FILE) as temporary:
        out = _Scattered(temporary, (len(items), source.dimension))
        for block in source.blocks():
            if block.keys is None:
                found = np.arange(len(block.vectors)), np.arange(block.first, block.first + len(block.vectors))
            else:
                found = find(block.keys)
            unread += len(block.vectors) - len(np.unique(found[0]))
            chosen, slots = _slots(found, items)
            _refuse_twice(rows, chosen + block.first, slots, block, info)
            out.write(slots, _floats(block, chosen, info))
        out.close()
    known = np.flatnonzero(rows >= 0)
    if not len(known):
        keys = {"id": "ids", "text": "texts"}.get(source.by, "rows")
        raise DrkitError(
            f"none of the {keys} in {info.source} is that of a {info.per} that the round may draw"
            + (': compare its ids with those of the collection, or set by = "text"' if source.by == "id" else "")
        )
    with ArrayWriter(folder / VECTOR_ITEMS, {"items": np.int64, "rows": np.int64}) as writer:
        about = {"source": info.source, "per": info.per, "unknown": info.unknown}
        writer.metadata = {_INFO: json.dumps(about)}
        writer.append(items=items[known], rows=known)
    return {"vectors": len(known), "missing": len(items) - len(known), "unread": unread}


@define
class _Scattered:
    """A .npy file whose rows are written in any order; its map is released again and again."""

    path: Path
    shape: tuple[int, int]
    dtype: Any = None
    waiting: int = 0
    mapped: Any = None

    def write(self, slots: _Indices, vectors: NDArray[Any]) -> None:
        if self.dtype is None:
            self.dtype = vectors.dtype
            self.mapped = np.lib.format.open_memmap(self.path, "w+", self.dtype, self.shape)
        if self.mapped is None:
            self.mapped = np.lib.format.open_memmap(self.path, "r+")
        self.mapped[slots] = vectors
        self.waiting += vectors.nbytes
        if self.waiting > _MAPPED:
            self.close()

    def close(self) -> None:
        if self.mapped is not None:
            self.mapped.flush()
        self.mapped, self.waiting = None, 0


def _slots(found: tuple[_Indices, _Indices], items: _Indices) -> tuple[_Indices, _Indices]:
    """Return the rows of a block that belong to items, and the positions of these."""
    rows, indices = found
    slots = np.minimum(np.searchsorted(items, indices), max(len(items) - 1, 0))
    kept = np.flatnonzero(items[slots] == indices) if len(items) else np.empty(0, dtype=np.int64)
    return rows[kept], slots[kept]


def _refuse_twice(rows: _Indices, numbers: _Indices, slots: _Indices, block: VectorBlock, info: VectorInfo) -> None:
    """Note in i64[n] which row each item has. Raises DrkitError for a second row of an item."""
    order = np.argsort(slots, kind="stable")
    again = np.flatnonzero(slots[order][1:] == slots[order][:-1])
    repeated = rows[slots] >= 0
    if len(again) or repeated.any():
        if repeated.any():
            second = int(np.flatnonzero(repeated)[0])
            first_row = int(rows[slots[second]])
        else:
            second = int(order[again[0] + 1])
            first_row = int(numbers[order[again[0]]])
        key = block.keys[int(numbers[second]) - block.first] if block.keys else ""
        raise DrkitError(
            f"{info.source} has two vectors for {info.per} {key!r:.80}, in rows {first_row + 1} and "
            f"{int(numbers[second]) + 1}; delete one of them"
        )
    rows[slots] = numbers


def _floats(block: VectorBlock, chosen: _Indices, info: VectorInfo) -> NDArray[Any]:
    """Return some rows of a block, float16 as it is, others as float32. Raises DrkitError unless all are finite."""
    vectors = block.vectors[chosen]
    if vectors.dtype not in (np.float16, np.float32):
        vectors = vectors.astype(np.float32)
    if len(wrong := np.flatnonzero(~np.isfinite(vectors).all(1))):
        row = int(chosen[wrong[0]])
        key = repr(block.keys[row])[:80] if block.keys else f"row {block.first + row + 1}"
        raise DrkitError(f"{info.source}: the vector of {key} (row {block.first + row + 1}) is not finite")
    return vectors


class ComputedVectors:
    """The vectors that a part computes for queries or passages, as the source of a column.

    name: the part. numbered: the index and the vector f[D] of each item that has one.

    Raises DrkitError if there are none; `blocks` raises it for vectors of another length than the first.
    """

    by = BY_ID
    rows: int | None = None

    def __init__(self, name: str, numbered: Iterable[tuple[int, Any]]) -> None:
        self._name, given = name, iter(numbered)
        first = next(given, None)
        if first is None:
            raise DrkitError(f"the column {name!r} has no vectors: every value is None")
        self._numbered, self.dimension = chain([first], given), len(first[1])

    def blocks(self) -> Iterator[VectorBlock]:
        """Yield the vectors in blocks; their keys are the indices of the items."""
        done = 0
        for some in batched(self._numbered, _AT_ONCE):
            vectors = np.empty((len(some), self.dimension), dtype=np.float32)
            for row, (_, vector) in enumerate(some):
                if np.shape(vector) != (self.dimension,):
                    raise DrkitError(
                        f"the column {self._name!r} gave values of shape {np.shape(vector)} after vectors of "
                        f"{self.dimension} numbers; all must have one length"
                    )
                vectors[row] = vector
            yield VectorBlock(done, [str(index) for index, _ in some], vectors)
            done += len(some)


def numbers_of(keys: Sequence[str]) -> _Indices:
    """Return the indices that keys of `ComputedVectors` are, i64[n]."""
    return np.array([int(key) for key in keys], dtype=np.int64)


class TextVectors:
    """The signal `text-vectors`: a teacher's vector of each text of pre-training, f32[n,K].

    Rows are found by the ids of passages (`DOC#n` of spans), by text, or in the order of the texts. Raises DrkitError,
    from `values`, for a text without a vector, and as `write_vector_column` does.
    """

    def __init__(self, config: TextVectorsConfig, _context: object = None) -> None:
        self.config = config

    def values(self, texts: SignalTexts, _folder: Path) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors of all texts, in their order."""
        source, count = open_vectors(self.config.path, of="passage", by=self.config.by), len(texts.store)
        named = (name if source.by == BY_ID else text for name, text in texts.named())
        find = finder_of_ids(DocIds.of(named).find) if source.by == BY_ID else finder_of_texts(named)
        info = VectorInfo(f"the file {self.config.path}", "passage")
        with TemporaryDirectory(prefix=SCRATCH, dir=texts.scratch) as name:
            found = write_vector_column(source, find, np.arange(count), Path(name), info, total=count)
            if found["missing"]:
                has_none = StoredVectors(Path(name)).lacks(-1, np.arange(count))
                shown = next(some for some, is_missing in zip(texts.named(), has_none, strict=True) if is_missing)
                raise DrkitError(
                    f"the file {self.config.path} has no vector for {found['missing']:,} of the {count:,} texts, such "
                    f"as {shown[0]!r} ({shown[1]!r:.60}); add what is missing"
                )
            stored = StoredVectors(Path(name))
            for start in range(0, count, _AT_ONCE):
                yield stored.take(np.arange(start, min(start + _AT_ONCE, count)))
