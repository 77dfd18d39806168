"""Numpy arrays of any length in one Arrow file, and the values of signals, which are such arrays.

Arrays are written as streams and read as memory-mapped arrays. A file has one record batch, so every column is one
contiguous array and lookups need no loop over chunks. While a file is written, its values are kept in plain files
beside it; memory stays flat.

A signal (`drkit.core.protocols.Signal`) computes values per token, text or vocabulary entry, `write_signal` checks and
stores them, and a `TokenStore` aligns them with the tokens of a batch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, DTypeLike, NDArray

from drkit.core.files import replacing
from drkit.errors import DrkitError


@contextmanager
def arrow_file(path: Path, schema: Any) -> Iterator[Any]:
    """Open a writer of record batches to an Arrow file, which appears at `path` only if all succeeds."""
    with replacing(path) as temporary, pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        yield writer


def record_batch(columns: Iterable[Sequence[Any]], schema: Any) -> Any:
    """Return a record batch of these columns, in the order of a schema and with its types."""
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def read_batches(path: Path, advice: str = "run its stage again", *, whole: bool = True) -> list[Any]:
    """Memory-map the record batches of an Arrow file, and check that they can be read.

    Lengths, offsets and indices must lie within the file, texts must be UTF-8, and nothing may be null: drkit writes no
    nulls. whole: False checks only the lengths, for a caller that calls `check_batch` before it reads a batch.

    Raises DrkitError, which ends with `advice`, if the file is missing, damaged, or not an Arrow file.
    """
    with _explain_damage(path, advice):
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    for batch in batches:
        check_batch(batch, path, advice, whole=whole)
    return batches


def check_batch(batch: Any, path: Path, advice: str = "run its stage again", *, whole: bool = True) -> None:
    """Raise DrkitError if a record batch of a file is damaged; see `read_batches`."""
    with _explain_damage(path, advice):
        batch.validate(full=whole)
        if batch.num_rows > 8 * path.stat().st_size:  # a row takes a bit at least
            raise ValueError(f"{batch.num_rows} rows")
        for column in batch.columns if whole else ():
            _refuse_nulls(column)


def _refuse_nulls(values: Any) -> None:
    if values.null_count or pa.types.is_null(values.type):
        raise ValueError("values are missing")
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        _refuse_nulls(values.values)
    elif pa.types.is_dictionary(values.type):
        _refuse_nulls(values.dictionary)


def stream_batches(path: Path, advice: str = "write it again") -> Iterator[Any]:
    """Yield the record batches of an Arrow file that drkit need not have written, one at a time.

    Of both formats, the file's (Feather) and the stream's; rows may be null. Raises DrkitError, which ends with
    `advice`, if the file is missing, damaged, or not an Arrow file.
    """
    with _explain_damage(path, advice), pa.memory_map(str(path)) as source:
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            found: Iterator[Any] = iter(pa.ipc.open_stream(source))
        else:
            found = (reader.get_batch(number) for number in range(reader.num_record_batches))
        for batch in found:
            batch.validate(full=True)
            yield batch


def read_arrow(path: Path, advice: str = "run its stage again") -> Any:
    """Memory-map an Arrow file as one table. Raises DrkitError as `read_batches` does."""
    batches = read_batches(path, advice)
    return pa.Table.from_batches(batches) if batches else read_schema(path, advice).empty_table()


def read_schema(path: Path, advice: str = "run its stage again") -> Any:
    """Return the schema of an Arrow file; reads no values. Raises DrkitError as `read_batches` does."""
    with _explain_damage(path, advice), pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).schema


@contextmanager
def _explain_damage(path: Path, advice: str) -> Iterator[None]:
    """Turn what Arrow raises for a file that is missing, damaged or of another format into a DrkitError."""
    try:
        yield
    except DrkitError:
        raise
    except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, MemoryError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DrkitError(f"cannot be read as an Arrow file ({reason:.200}); {advice}", where=path) from None


class ArrayWriter:
    """Writes named columns of fixed dtypes to one Arrow file, which appears at `path` only if all succeeds.

    columns: dtypes by name. lists: every column is a list column; `append` takes the flat values and the number of
    values of each row, `lengths`.
    """

    def __init__(self, path: Path, columns: Mapping[str, DTypeLike], *, lists: bool = False) -> None:
        self.path = path
        self._lists = lists
        self._dtypes = {name: np.dtype(dtype) for name, dtype in columns.items()}
        self._offset = 0
        self.metadata: dict[str, Any] = {}

    def __enter__(self) -> ArrayWriter:
        self._folder = self.path.with_name(f".{self.path.name}.parts")
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True)
        names = [*self._dtypes, *(["offsets"] if self._lists else [])]
        self._files: dict[str, BinaryIO] = {name: (self._folder / name).open("wb") for name in names}
        if self._lists:
            self._files["offsets"].write(np.zeros(1, np.int64).tobytes())
        return self

    def append(self, lengths: NDArray[Any] | None = None, **values: NDArray[Any]) -> None:
        """Append rows to every column; for lists, the flat values and the lengths of the rows."""
        for name, dtype in self._dtypes.items():
            self._files[name].write(np.ascontiguousarray(values[name], dtype=dtype).data)
        if lengths is not None and len(lengths):
            ends = self._offset + np.cumsum(lengths, dtype=np.int64)
            self._offset = int(ends[-1])
            self._files["offsets"].write(ends.data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for file in self._files.values():
                file.close()
            if kind is None:
                self._assemble()
                shutil.rmtree(self._folder)  # what is left here would become part of a stage
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _assemble(self) -> None:
        flat = {name: self._array(name, dtype) for name, dtype in self._dtypes.items()}
        if self._lists:
            offsets = self._array("offsets", np.dtype(np.int64))
            flat = {name: pa.LargeListArray.from_arrays(offsets, values) for name, values in flat.items()}
        metadata = {key: str(value) for key, value in self.metadata.items()}
        batch = pa.record_batch(list(flat.values()), names=list(flat))
        schema = batch.schema.with_metadata(metadata)
        with arrow_file(self.path, schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(metadata))

    def _array(self, name: str, dtype: np.dtype[Any]) -> Any:
        path = self._folder / name
        values = np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
        return pa.array(values)


class Arrays:
    """The columns of a file written by `ArrayWriter`, as read-only views of the memory-mapped file; picklable.

    Raises DrkitError if the file is missing, damaged, or not an Arrow file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        batches = read_batches(path)
        if len(batches) != 1:
            raise DrkitError(f"holds {len(batches)} record batches, expected 1; run its stage again", where=path)
        self._batch = batches[0]
        with _explain_damage(path, "run its stage again"):
            metadata = self._batch.schema.metadata or {}
            self.metadata = _Metadata(path, {key.decode(): value.decode() for key, value in metadata.items()})

    def __reduce__(self) -> tuple[type[Arrays], tuple[Path]]:
        return Arrays, (self.path,)

    def __getitem__(self, name: str) -> Any:
        column = self._column(name)
        values = column.values if pa.types.is_large_list(column.type) else column
        with _explain_damage(self.path, "run its stage again"):
            return values.to_numpy(zero_copy_only=True)

    def offsets(self, name: str) -> NDArray[np.int64]:
        """Return where each row of a list column starts among its flat values, i64[rows + 1]."""
        column = self._column(name)
        if not pa.types.is_large_list(column.type):
            raise DrkitError(f"the column {name!r} has no lists; run its stage again", where=self.path)
        return np.asarray(column.offsets.to_numpy(zero_copy_only=True), dtype=np.int64)

    def _column(self, name: str) -> Any:
        if name not in self._batch.schema.names:
            raise DrkitError(f"has no column {name!r}; run its stage again", where=self.path)
        return self._batch.column(name)


class _Metadata(dict[str, str]):
    """Texts by name. Raises DrkitError for a name that the file lacks."""

    def __init__(self, path: Path, texts: Mapping[str, str]) -> None:
        super().__init__(texts)
        self._path = path

    def __missing__(self, name: str) -> str:
        raise DrkitError(f"does not say its {name!r}; run its stage again", where=self._path)


_FILE = "values.arrow"


class SignalValues:
    """The memory-mapped values of a signal, f32[n] or f32[n,K], for n content tokens, texts or vocabulary entries.

    Values of tokens are aligned with `TokenStore.flat_ids`; `TokenStore.batch(.., signals={name: this})` adds them to a
    batch. Picklable.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        arrays = Arrays(self.path)
        self.scope = arrays.metadata["scope"]
        width = int(arrays.metadata["width"])
        flat: NDArray[np.float32] = arrays["values"]
        self.values = flat.reshape(-1, width) if width else flat

    @classmethod
    def open(cls, folder: Path) -> SignalValues:
        """Open what `write_signal` wrote to `folder`. Raises DrkitError if it is missing."""
        return cls(Path(folder) / _FILE)

    def __reduce__(self) -> tuple[type[SignalValues], tuple[Path]]:
        return SignalValues, (self.path,)

    def __len__(self) -> int:
        return len(self.values)


def write_signal(
    name: str, chunks: Iterable[ArrayLike], folder: Path, *, scope: str, count: int, metadata: Mapping[str, Any] = {}
) -> SignalValues:
    """Write the values of a signal to `folder`, and open them; chunks: f32[n] or f32[n,K], in order.

    scope: `token`, `text` or `vocabulary`; count: the required number of values.

    Raises DrkitError for more or fewer values, a value that is not finite, or chunks that differ in K.
    """
    width, written = None, 0
    with ArrayWriter(Path(folder) / _FILE, {"values": np.float32}) as writer:
        for chunk in chunks:
            values = np.asarray(chunk, dtype=np.float32)
            width = _width(name, values, width)
            if not np.isfinite(values).all():
                first = int(np.argwhere(~np.isfinite(values))[0, 0])
                raise DrkitError(
                    f"the signal {name!r} is not finite at {scope} {written + first} of {count}; "
                    f"use 0 if a value is unknown"
                )
            writer.append(values=values)
            written += len(values)
        writer.metadata = {"scope": scope, "width": width or 0, **metadata}
        if written != count:
            raise DrkitError(
                f"the signal {name!r} gave {written:,} values for {count:,} of scope {scope!r}; give exactly one value "
                f"for each, in order"
            )
    return SignalValues.open(folder)


def _width(name: str, values: NDArray[np.float32], before: int | None) -> int:
    """Return K of f32[n,K], or 0 of f32[n]. Raises DrkitError if it differs from the earlier chunks."""
    if values.ndim not in (1, 2):
        raise DrkitError(f"the signal {name!r} gave values of shape {values.shape}; give f32[n] or f32[n,K]")
    width = values.shape[1] if values.ndim == 2 else 0
    if before is not None and width != before:
        raise DrkitError(
            f"the signal {name!r} gave vectors of {width} values after vectors of {before}; K must be constant"
        )
    return width
