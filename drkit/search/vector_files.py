"""Vectors of texts in files: what a teacher made of passages or queries, streamed in blocks of rows.

A folder of `drkit encode`; a .parquet, .arrow or .feather file with a column of lists of floats beside ids or texts,
such as `drkit export-vectors` and datasets write; a .npy file with its ids in `NAME.ids.txt`, one a line, or with rows
in the order of the collection. Nothing is read as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.files import local_path
from drkit.data.arrays import stream_batches
from drkit.data.columns import ID_NAMES, QUERY_IDS, TEXT_NAMES, matching
from drkit.errors import DrkitError
from drkit.search.vectors import SHARDS_FILE, Shards, Vectors, read_shards

# What a row names its text by; `row`: by its number.
BY_ID, BY_TEXT, BY_ROW = "id", "text", "row"
# How the name of the file with the ids of a .npy file ends.
IDS_SUFFIX = ".ids.txt"
_ROWS = 4096
_VECTOR_NAMES = ("vector", "embedding", "vectors", "embeddings", "value")
_IDS: tuple[str, ...] = ("doc_id", "passage_id", "query_id", *ID_NAMES, *QUERY_IDS[2:])
_TEXTS: tuple[str, ...] = ("text", "query", "passage", "sentence", *TEXT_NAMES, "question", "query_text")
_TABLES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}
VECTOR_FORMATS = f"a folder of drkit encode, or a file {', '.join(_TABLES)} or .npy"


@frozen(eq=False)
class VectorBlock:
    """Consecutive rows of a file: the number of the first, what they name their texts by, and vectors f[n,D].

    keys: ids or texts; None if rows are in the order of the collection.
    """

    first: int
    keys: Sequence[str] | None
    vectors: NDArray[Any]


class VectorSource(Protocol):
    """Vectors in a file. by: `id`, `text` or `row`, what names the text of each; dimension: D."""

    by: str
    dimension: int

    @property
    def rows(self) -> int | None:
        """How many rows there are, if that is known beforehand."""

    def blocks(self) -> Iterator[VectorBlock]:
        """Yield the rows in order. Raises DrkitError for a damaged file, or vectors of different lengths."""


def open_vectors(path: str | Path, *, of: str, by: str = "") -> VectorSource:
    """Open the vectors at a path; reads their headers only.

    of: `passage` or `query`, what they belong to. by: `id` or `text`; empty: ids if the file has some.

    Raises DrkitError if nothing there holds vectors, or has no ids or texts, as `by` says, or a folder of
    `drkit encode` has those of the other side.
    """
    source = local_path(path)
    if (source / SHARDS_FILE).is_file():
        return _Folder(source, of, by)
    if not source.is_file():
        raise DrkitError(f"no vectors at {path}: expected {VECTOR_FORMATS}")
    if source.suffix == ".npy":
        return _Array(source, by)
    if source.suffix not in _TABLES:
        raise DrkitError(f"cannot read vectors from {path}: expected {VECTOR_FORMATS}")
    return _Table(source, by)


class _Folder:
    """A folder that `drkit encode` wrote, compared with its hashes before it is read."""

    def __init__(self, folder: Path, of: str, by: str) -> None:
        self._folder, self.by = folder, BY_ID
        about = read_shards(folder) or {}
        self.dimension, self.rows = int(about.get("dimension") or 0), about.get("count")
        if by == BY_TEXT:
            raise DrkitError("holds ids, not texts; leave out `by`", where=folder)
        role = about.get("role")
        if role is not None and role != {"passage": "passages", "query": "queries"}[of]:
            raise DrkitError(
                f"holds vectors of {role}, not of {of} texts; set `of`, or encode the others: drkit encode .. "
                f"{'--split train ' if of == 'query' else ''}-o FOLDER",
                where=folder,
            )

    def blocks(self) -> Iterator[VectorBlock]:
        opened = Vectors.open(self._folder)
        for start, block in opened.shards.blocks(_ROWS):
            yield VectorBlock(start, opened.doc_ids.take(np.arange(start, start + len(block))), block)


class _Array:
    """A .npy file, with ids beside it or in the order of the collection."""

    def __init__(self, path: Path, by: str) -> None:
        self._path, self._ids = path, path.with_name(path.stem + IDS_SUFFIX)
        self._shards = Shards.read([path])
        self.rows, self.dimension = self._shards.shape
        self.by = BY_ID if self._ids.is_file() else BY_ROW
        if by == BY_TEXT or (by == BY_ID and self.by == BY_ROW):
            beside = f"give the ids in {self._ids.name}, one a line" if by == BY_ID else "leave out `by`"
            raise DrkitError(f"has no {by}s; {beside}", where=path)

    def blocks(self) -> Iterator[VectorBlock]:
        if self.by == BY_ROW:
            yield from (VectorBlock(start, None, block) for start, block in self._shards.blocks(_ROWS))
            return
        with self._ids.open(encoding="utf-8") as lines:
            ids = (line.rstrip("\r\n") for line in lines)
            for start, block in self._shards.blocks(_ROWS):
                keys = list(islice(ids, len(block)))
                if len(keys) < len(block):
                    raise DrkitError(
                        f"has {start + len(keys):,} ids for {len(self._shards):,} vectors", where=self._ids
                    )
                yield VectorBlock(start, keys, block)
            if next(ids, None) is not None:
                raise DrkitError(f"has more ids than the {len(self._shards):,} vectors", where=self._ids)


class _Table:
    """A Parquet or Arrow file with a column of vectors, and one of ids or texts."""

    def __init__(self, path: Path, by: str) -> None:
        self._path, self.rows = path, None
        self._is_parquet = _TABLES[path.suffix] == "parquet"
        if self._is_parquet:
            try:
                schema, self.rows = pq.read_schema(path), pq.read_metadata(path).num_rows
            except (OSError, pa.ArrowException) as error:
                raise DrkitError(f"cannot be read as a Parquet file ({error!s:.200})", where=path) from None
        else:
            batch = next(stream_batches(path), None)
            if batch is None:
                raise DrkitError("has no rows", where=path)
            schema = batch.schema
        self.by, self._key, self._vector = _columns_of(schema, by, path)
        self.dimension = next(self.blocks()).vectors.shape[1]

    def blocks(self) -> Iterator[VectorBlock]:
        first, dimension = 0, None
        for batch in self._batches():
            keys, column = batch.column(self._key), batch.column(self._vector)
            for what, values in ((self._key, keys), (self._vector, column)):
                if values.null_count:
                    row = first + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
                    raise DrkitError(f"row {row + 1} has no {what!r}", where=self._path)
            vectors = _as_array(column, first, dimension, self._path)
            dimension = vectors.shape[1]
            yield VectorBlock(first, pc.cast(keys, pa.large_string()).to_pylist(), vectors)
            first += len(batch)
        if dimension is None:
            raise DrkitError("has no rows", where=self._path)

    def _batches(self) -> Iterator[Any]:
        if not self._is_parquet:
            for batch in stream_batches(self._path):
                for start in range(0, len(batch), _ROWS):
                    yield batch.slice(start, _ROWS)
            return
        try:
            with pq.ParquetFile(self._path, buffer_size=2**20, pre_buffer=False) as file:  # not the whole file
                for batch in file.iter_batches(_ROWS, columns=[self._key, self._vector], use_threads=False):
                    if len(batch):
                        yield batch
        except (OSError, pa.ArrowException) as error:
            raise DrkitError(f"cannot be read as a Parquet file ({error!s:.200})", where=self._path) from None


def _columns_of(schema: Any, by: str, path: Path) -> tuple[str, str, str]:
    """Return what a table's rows name their texts by, the column that has it, and that of the vectors."""
    names = tuple(schema.names)
    vectors = tuple(name for name in names if _is_vector(schema.field(name).type))
    chosen = vectors if len(vectors) == 1 else matching(vectors, _VECTOR_NAMES)
    shown = ", ".join(f"{name} ({schema.field(name).type})" for name in names)
    if not chosen:
        many = "several columns of vectors; call one of them 'vector'" if vectors else "no column of lists of floats"
        raise DrkitError(f"has {many}; columns: {shown}", where=path)
    others = tuple(name for name in names if name != chosen[0])
    for found_by, usual in ((BY_ID, _IDS), (BY_TEXT, _TEXTS)):
        if by in ("", found_by) and (found := matching(others, usual)):
            return found_by, found[0], chosen[0]
    named = [*(_IDS[:4] if by != BY_TEXT else ()), *(_TEXTS[:3] if by != BY_ID else ())]
    raise DrkitError(f"has no column {' or '.join(map(repr, named))} beside the vectors; columns: {shown}", where=path)


def _is_vector(kind: Any) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))


def _as_array(column: Any, first: int, dimension: int | None, path: Path) -> NDArray[Any]:
    """Return a column of lists as [n,D]. Raises DrkitError for lists of another length, with their row."""
    if pa.types.is_fixed_size_list(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = np.diff(column.offsets.to_numpy())
    expected = int(lengths[0]) if dimension is None else dimension
    if len(wrong := np.flatnonzero(lengths != expected)) or not expected:
        row = int(wrong[0]) if len(wrong) else 0
        raise DrkitError(
            f"row {first + row + 1} has a vector of {lengths[row]} numbers, those before have {expected}; all must "
            f"have one length, of at least 1",
            where=path,
        )
    flat: NDArray[Any] = column.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), expected)


def text_digest(text: str) -> bytes:
    """Return 16 bytes that stand for a text.

    >>> len(text_digest("a")), text_digest("a") == text_digest("b")
    (16, False)
    """
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
