"""Where to cut large files so that several processes read them: lines of .jsonl and .tsv, row groups of Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from drkit.core.files import path_state
from drkit.data.rows import LONGEST_LINE, FileRange

# Of a range, at least: some seconds of reading, and thousands of ranges in the largest collections.
RANGE_BYTES = 64 << 20
_BLOCK = 1 << 20


def file_ranges(path: Path) -> Iterator[FileRange]:
    r"""Yield the ranges of a file, in order; none if it can only be read from its beginning (.csv, .json, compressed).

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "texts.tsv")
    ...     _ = path.write_text("1\ta text")
    ...     [(part.start, part.stop) for part in file_ranges(path)]
    [(0, 8)]
    """
    if path.suffix in (".jsonl", ".tsv"):
        return _lines(path)
    return _row_groups(path) if path.suffix == ".parquet" else iter(())


def _lines(path: Path) -> Iterator[FileRange]:
    try:
        file, size, state = path.open("rb"), path.stat().st_size, path_state(path)
    except OSError:
        return  # reading it as a whole says what is wrong
    start, first = 0, 1
    with file:
        while start < size:
            file.seek(start + RANGE_BYTES - 1)
            file.readline(LONGEST_LINE + 1)  # a longer line is an error of the range in which it begins
            stop = min(file.tell(), size)
            yield FileRange(path, start, stop, first, state)
            first += _count_lines(file, start, stop)
            start = stop


def _count_lines(file: IO[bytes], start: int, stop: int) -> int:
    file.seek(start)
    sizes = (min(_BLOCK, stop - at) for at in range(start, stop, _BLOCK))
    return sum(file.read(size).count(b"\n") for size in sizes)


def _row_groups(path: Path) -> Iterator[FileRange]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    except (OSError, pa.ArrowException):
        return  # reading it as a whole says what is wrong
    start, first, size, rows, state = 0, 1, 0, 0, path_state(path)
    for stop, group in enumerate(groups, start=1):
        size, rows = size + group.total_byte_size, rows + group.num_rows
        if size >= RANGE_BYTES or stop == len(groups):
            yield FileRange(path, start, stop, first, state)
            start, first, size, rows = stop, first + rows, 0, 0
