"""The columns of fine-tuning: values of queries, of passages, or of pairs of both, on disk and looked up by index.

A file has a row for each query, with the indices of passages and their values. What a value does not depend on has the
index -1: a value per query is that of its passage -1, and a value per passage that of the query -1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from attrs import asdict, evolve, frozen
from numpy.typing import NDArray

from drkit.data.arrays import arrow_file, read_batches, read_schema, record_batch
from drkit.data.column_sources import DROP_UNKNOWN, REFUSE_UNKNOWN
from drkit.data.corpus import StoredCorpus
from drkit.data.rows import batched
from drkit.data.values import PAIR, PASSAGE, QUERY, Value
from drkit.errors import DrkitError
from drkit.train.vector_columns import VECTOR_ITEMS, StoredVectors

_Indices = NDArray[np.int64]

COLUMN_FILE = "values.arrow"
_INFO = b"column"
_ROWS = 4096


@frozen
class ColumnInfo:
    """What the values of a column are.

    source: where they are from, such as a hash of a model's weights. per: `query`, `passage` or `pair`. default: the
    value of what the file does not have, None if that has none. unknown: `drop` if training leaves that out instead.
    """

    source: str
    per: str = PAIR
    default: float | None = None
    unknown: str = REFUSE_UNKNOWN


def column_schema(info: ColumnInfo, values: Any = None) -> Any:
    """Return the schema of a column's file; values: their Arrow type, 32-bit floats by default."""
    lists = {"passages": pa.list_(pa.int64()), "values": pa.list_(pa.float32() if values is None else values)}
    fields = [("query", pa.int64()), ("query_id", pa.large_string()), *lists.items()]
    about = {key: value for key, value in asdict(info).items() if key != "unknown" or value != REFUSE_UNKNOWN}
    return pa.schema(fields, {_INFO: json.dumps(about).encode()})


def read_info(path: Path) -> ColumnInfo:
    """Return what a file says about its column. Raises DrkitError if it is not the file of a column."""
    try:
        return ColumnInfo(**json.loads(read_schema(path).metadata[_INFO]))
    except (TypeError, KeyError, ValueError) as error:
        raise DrkitError(f"{path} is not the file of a column ({error}); run the stage that writes it again") from None


def read_column(folder: Path) -> AnyColumn:
    """Open the column that a stage wrote to `folder`: numbers, or vectors. Raises DrkitError if it is missing."""
    if (Path(folder) / VECTOR_ITEMS).is_file():
        return StoredVectors(Path(folder))
    return StoredColumn(Path(folder) / COLUMN_FILE)


class StoredColumn:
    """The values of a column, memory-mapped; pickled as a path. `len` is the number of queries in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        batches, self._info = read_batches(path), read_info(path)
        self._type = batches[0].schema.field("values").type.value_type.to_pandas_dtype() if batches else np.float32
        self._batches = [_Batch.of(batch) for batch in batches if batch.num_rows]
        self._starts = np.array([batch.queries[0] for batch in self._batches], dtype=np.int64)

    def __reduce__(self) -> tuple[type[StoredColumn], tuple[Path]]:
        return StoredColumn, (self.path,)

    def __len__(self) -> int:
        return sum(len(batch.queries) for batch in self._batches)

    @property
    def per(self) -> str:
        """What has a value: a `query`, a `passage`, or a `pair` of both."""
        return self._info.per

    @property
    def drops_unknown(self) -> bool:
        """Whether training leaves out queries and pairs without a value."""
        return self._info.unknown == DROP_UNKNOWN

    def row(self, query_index: int) -> tuple[_Indices, NDArray[Any]] | None:
        """Return the passages i64[n] of a row, ascending, and their values [n]; None without the row."""
        which = int(np.searchsorted(self._starts, query_index, side="right")) - 1
        return self._batches[which].row(query_index) if which >= 0 else None

    def lookup(self, query_index: int, passages: _Indices) -> NDArray[Any]:
        """Return the values [n] of passages i64[n] for a query, by index in the stores.

        What the file does not have is the default or, without one, NaN, -1 or False.
        """
        kind = np.dtype(self._type).kind
        missing = self._info.default if self._info.default is not None else {"f": np.nan, "i": -1}.get(kind, False)
        out = np.full(len(passages), missing, dtype=self._type)
        found, values = self._find(query_index, passages)
        out[found] = values
        return out

    def lacks(self, query_index: int, passages: _Indices) -> NDArray[np.bool_]:
        """Return which passages i64[n] have neither a value for a query nor a default, bool[n]."""
        return ~self._find(query_index, passages)[0] & (self._info.default is None)

    def _find(self, query_index: int, passages: _Indices) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Return which passages have a value, bool[n], and the values of those."""
        row = self.row(-1 if self.per == PASSAGE else query_index)
        if row is None:
            return np.zeros(len(passages), dtype=bool), np.empty(0, dtype=self._type)
        known, values = row
        sought = np.full_like(passages, -1) if self.per == QUERY else passages
        slots = np.minimum(np.searchsorted(known, sought), len(known) - 1)
        found = known[slots] == sought
        return found, values[slots[found]]


@frozen(eq=False)
class _Batch:
    """Views of one record batch: queries i64[n], ascending; passages and values, flat; starts i32[n + 1]."""

    queries: _Indices
    passages: _Indices
    values: NDArray[Any]
    starts: NDArray[np.int32]

    @classmethod
    def of(cls, batch: Any) -> _Batch:
        passages, values = batch.column("passages"), batch.column("values")
        return cls(
            batch.column("query").to_numpy(),
            passages.values.to_numpy(),
            values.values.to_numpy(zero_copy_only=False),  # bools are bits
            passages.offsets.to_numpy(),
        )

    def row(self, query: int) -> tuple[_Indices, NDArray[Any]] | None:
        index = int(np.searchsorted(self.queries, query))
        if index == len(self.queries) or self.queries[index] != query:
            return None
        row = slice(self.starts[index], self.starts[index + 1])
        return self.passages[row], self.values[row]


AnyColumn: TypeAlias = "StoredColumn | StoredVectors"


def write_values(
    values: Iterable[Value], queries: Mapping[str, int], corpus: StoredCorpus, folder: Path, info: ColumnInfo
) -> None:
    """Write the values of a column into `folder`, atomically; what has a value follows from the first one.

    queries: the index of each training query, by id. Values with a row, which are read from a file, must be of known
    queries and passages, unless the column drops unknown ones; others are left out if they are not. Memory: 32 bytes
    per value.

    Raises DrkitError without values, and for unknown ids, two values of the same ids, or different sorts of rows.
    """
    values = iter(values)
    first = next(values, None)
    if first is None:
        raise DrkitError(f"{info.source} has no values; expected some of queries, passages or pairs, each with its ids")
    strict = info.unknown == REFUSE_UNKNOWN
    resolved = [
        _resolve(some, first, queries, corpus, strict=strict) for some in batched(chain([first], values), _ROWS)
    ]
    keys, numbers, lines = (np.concatenate(some, axis=-1) for some in zip(*resolved, strict=True))
    order = np.lexsort((keys[1], keys[0]))
    keys, lines = keys[:, order], lines[order]
    again = np.flatnonzero((keys[:, 1:] == keys[:, :-1]).all(0))
    if first.row and len(again):
        before, after = (evolve(first.row, number=int(lines[again[0] + later])) for later in (0, 1))
        raise DrkitError(f"{before} and {after} are of the same {first.per}; delete one of them")
    _write_sorted(keys, _typed(numbers[order], info.default), queries, folder, evolve(info, per=first.per))


def _resolve(
    some: Sequence[Value], first: Value, queries: Mapping[str, int], corpus: StoredCorpus, *, strict: bool
) -> tuple[_Indices, NDArray[Any], _Indices]:
    """Return the indices i64[2,n] of queries and passages, the numbers [n], and the lines i64[n] of known values.

    strict: refuse unknown ids of a file.
    """
    for value in some:
        if value.per != first.per:
            raise DrkitError(f"{value} is of a {value.per}, but {first} of a {first.per}; use two files")
        if isinstance(value.value, bool) != isinstance(first.value, bool):
            raise DrkitError(f"{value} has {value.value}, but {first} has {first.value}: use bools or numbers")
    found = [queries.get(value.query_id, -1) for value in some], corpus.find([value.doc_id for value in some])
    keys = np.array(found, dtype=np.int64)
    unknown = ((keys[0] < 0) & (first.per != PASSAGE)) | ((keys[1] < 0) & (first.per != QUERY))
    for index in np.flatnonzero(unknown).tolist() if strict else ():
        value = some[index]
        if value.row and first.per != PASSAGE and keys[0, index] < 0:
            raise DrkitError(
                f"query {value.query_id!r} is not among the training queries; mend its id", where=value.row
            )
        if value.row:
            raise DrkitError(f"passage {value.doc_id!r} is not in the collection; mend its id", where=value.row)
    known = np.flatnonzero(~unknown)
    lines = np.array([value.row.number if value.row else 0 for value in some], dtype=np.int64)
    return keys[:, known], np.array([value.value for value in some])[known], lines[known]


def _typed(numbers: NDArray[Any], default: float | None) -> NDArray[Any]:
    """Return bools and integers as they are if the default is one, too, and all other numbers as floats f32[n]."""
    is_kept = default is None or default == np.asarray(default).astype(numbers.dtype)
    return numbers if numbers.dtype.kind in "bi" and is_kept else numbers.astype(np.float32)


def _write_sorted(
    keys: _Indices, numbers: NDArray[Any], queries: Mapping[str, int], folder: Path, info: ColumnInfo
) -> None:
    """Write the values of keys i64[2,n], which are sorted, a row for each query."""
    names = {index: query_id for query_id, index in queries.items()}
    schema = column_schema(info, pa.from_numpy_dtype(numbers.dtype))
    starts = np.flatnonzero(np.diff(keys[0], prepend=-2))
    with arrow_file(folder / COLUMN_FILE, schema) as writer:
        for some in batched(zip(starts, [*starts[1:], len(numbers)], strict=True), _ROWS):
            owners = [int(keys[0, start]) for start, _ in some]
            columns = (
                owners,
                [names.get(owner, "") for owner in owners],
                [keys[1, start:end] for start, end in some],
                [numbers[start:end] for start, end in some],
            )
            writer.write_batch(record_batch(columns, schema))
