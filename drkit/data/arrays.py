"""Numpy arrays of any length in one Arrow file: written as streams, read as memory-mapped arrays.

A file has one record batch, so every column is one contiguous array and lookups need no loop over chunks. While a file
is written, its values are kept in plain files beside it; memory stays flat.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from drkit.core.files import replacing
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


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
                shutil.rmtree(self._folder)
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
        with replacing(self.path) as path, pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(metadata))

    def _array(self, name: str, dtype: np.dtype[Any]) -> Any:
        path = self._folder / name
        values = np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
        return pa.array(values)


class Arrays:
    """The columns of a file written by `ArrayWriter`, as read-only views of the memory-mapped file; picklable.

    Raises DrkitError if the file is missing or not an Arrow file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._source = pa.memory_map(str(path))
            reader = pa.ipc.open_file(self._source)
            self._batch = reader.get_batch(0)
        except (OSError, pa.ArrowException) as error:
            raise DrkitError(f"{path}: cannot be read as an Arrow file ({error}); run its stage again") from None
        self.metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}

    def __reduce__(self) -> tuple[type[Arrays], tuple[Path]]:
        return Arrays, (self.path,)

    def __getitem__(self, name: str) -> Any:
        column = self._batch.column(name)
        values = column.values if pa.types.is_large_list(column.type) else column
        return values.to_numpy(zero_copy_only=True)

    def offsets(self, name: str) -> NDArray[np.int64]:
        """Return where each row of a list column starts among its flat values, i64[rows + 1]."""
        return np.asarray(self._batch.column(name).offsets.to_numpy(zero_copy_only=True), dtype=np.int64)
