"""Rows of the files that people keep data in, as named values: JSON Lines, JSON, tables, Parquet; one row at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from drkit.data.lines import Record, json_lines, numbered_lines
from drkit.errors import DrkitError

FORMATS = (".jsonl", ".json", ".tsv", ".csv", ".parquet")
SEPARATORS = {".tsv": "\t", ".csv": ","}
_LONGEST_CELL = 2**30

# Given the cells of a table's first line: the names of its columns; None where they are values.
Header = Callable[[Sequence[str]], "Sequence[str] | None"]


def kind_of(path: Path) -> str:
    """`.jsonl`, `.tsv` ..: what a file is by its name, `.gz` taken off.

    >>> kind_of(Path("train.jsonl.gz")), kind_of(Path("a.csv"))
    ('.jsonl', '.csv')
    """
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix


def existing_file(text: str, what: str, formats: Sequence[str] = FORMATS) -> Path:
    """The file at a path that a setting names. Raises DrkitError where it is missing, or of another kind."""
    path = Path(text).expanduser()
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise DrkitError(f"{what}: {path} {found}; a file is wanted: {', '.join(formats)}")
    if kind_of(path) not in formats:
        raise DrkitError(f"{what}: {path} is none of {', '.join(formats)} (gzipped or not); rename it to its kind")
    return path


def records(path: Path, header: Header, *, unnamed: Sequence[str] = ()) -> Iterator[Record]:
    """The rows of a file, as `Record`s.

    header: tells whether a table's first line names its columns, and how; where it does not, the columns are called
    `unnamed`, in their order, the last name serving all that follow where it ends in `*` (`negative_*`).

    Raises DrkitError naming `file:line` at a row that cannot be read.
    """
    kind = kind_of(path)
    if kind == ".jsonl":
        return json_lines(path)
    if kind == ".json":
        return _json_array(path)
    return _parquet(path) if kind == ".parquet" else _table(path, header, unnamed)


def _json_array(path: Path) -> Iterator[Record]:
    """The objects of one JSON list; a file of JSON Lines that is called .json is read as what it is."""
    first = next((line for _, line in numbered_lines(path) if line.strip()), "")
    if not first.lstrip().startswith("["):
        yield from json_lines(path)
        return
    try:
        items = json.loads("\n".join(line for _, line in numbered_lines(path)))
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DrkitError(f"{path}{line}: malformed JSON ({error}); a list of objects is wanted") from None
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise DrkitError(f"{path}: item {number}: {type(item).__name__} found, a JSON object is wanted")
        yield Record(path, number, item, "item")


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = count(1)
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                for item in batch.to_pylist():
                    yield Record(path, next(numbers), item, "row")
    except (OSError, pa.ArrowException) as error:
        raise DrkitError(f"{path}: cannot be read as Parquet past row {next(numbers) - 1} ({error})") from None


def _table(path: Path, header: Header, unnamed: Sequence[str]) -> Iterator[Record]:
    names: Sequence[str] | None = None
    for row, (number, cells) in enumerate(cells_of(path)):
        if row == 0 and (names := header(cells)) is not None:
            _refuse_twice(names, path, number)
            continue
        names = _called(unnamed, len(cells)) if names is None else names
        if len(cells) != len(names):
            separator = SEPARATORS[kind_of(path)]
            raise DrkitError(
                f"{path}:{number}: {len(cells)} cells found, {len(names)} are wanted ({', '.join(names)}), in columns "
                f"separated by {separator!r}"
            )
        yield Record(path, number, dict(zip(names, cells, strict=True)))


def cells_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line of a .tsv (without quotes) or .csv (quoted where needed).

    Raises DrkitError naming `file:line` at an empty line, or one that cannot be read.
    """
    if kind_of(path) == ".tsv":
        lines: Iterator[tuple[int, list[str]]] = ((number, line.split("\t")) for number, line in numbered_lines(path))
    else:
        lines = _quoted(path)
    for number, cells in lines:
        if not any(cells):
            raise DrkitError(f"{path}:{number}: empty line; delete it")
        yield number, cells


def _quoted(path: Path) -> Iterator[tuple[int, list[str]]]:
    # Python's limit of 128 KiB a cell is for all of a process; documents are longer.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    reader = csv.reader((f"{line}\n" for _, line in numbered_lines(path)), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DrkitError(f"{path}:{reader.line_num}: {error}; cells with commas or quotes are quoted") from None


def _refuse_twice(names: Sequence[str], path: Path, number: int) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise DrkitError(f"{path}:{number}: the header names {', '.join(map(repr, twice))} twice; rename one")


def _called(unnamed: Sequence[str], width: int) -> Sequence[str]:
    if unnamed and unnamed[-1].endswith("*") and width >= len(unnamed):
        more = [unnamed[-1].replace("*", str(place)) for place in range(1, width - len(unnamed) + 2)]
        return [*unnamed[:-1], *more]
    return [name for name in unnamed if not name.endswith("*")][:width] if width < len(unnamed) else unnamed


def row_of(rows: Iterator[tuple[Any, Any]], row: int) -> str:
    """Where row `row` of a table stands, the table read again as (place, item) pairs; empty where it has fewer."""
    return next((str(place) for number, (place, _) in enumerate(rows) if number == row), "")
