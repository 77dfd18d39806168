"""Rows of data files, one at a time: JSON Lines, .tsv, .csv (each compressed or not), and Parquet.

Errors name the line, `file:line`, or the row. Parquet is read by pyarrow, .csv by `csv`. Neither pyarrow nor
`datasets` reads text formats here: they name no line of a bad row, `datasets` makes 7 of the id `007` and null of the
title `NA`, and of a million rows (200 MB) they hold 120 and 430 MB in memory, where 20 are enough.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

from attrs import frozen

from drkit.core.files import local_path
from drkit.data.columns import (
    QUERY_COLUMN,
    TEXT_COLUMN,
    Columns,
    NamedColumns,
    columns_advice,
    header_of,
    is_known_name,
    matching,
)
from drkit.data.json_lists import read_json_list
from drkit.errors import DrkitError

_LOGGER = logging.getLogger(__name__)
Item = TypeVar("Item")
FORMATS = (".jsonl", ".json", ".tsv", ".csv", ".parquet")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# A .txt file is a table only where its name says so.
_SEPARATORS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
COMPRESSED = (".gz", ".zst")
# The longest documents are books of some megabytes; a line of a gzip bomb would fill the memory.
LONGEST_LINE = 16 << 20


@frozen
class FileRow:
    """The values of one row, and where they were read: `path:number`, or `path: unit number`, from 1.

    is_headless: whether it is of a table without a header, whose columns have the names of a layout. separator: what
    separates its columns, if its file's ending says another.
    """

    path: Path | str
    number: int
    values: dict[str, Any]
    unit: str = ""
    is_headless: bool = False
    separator: str = ""

    @property
    def is_of_table(self) -> bool:
        """Whether the row is of a .tsv, .csv or .txt file, where every value is a string."""
        return file_kind(Path(self.path)) in _SEPARATORS

    def text(self, key: str, *, default: str | None = None) -> str:
        """Return the string under `key`, or `default` if the key is missing or null.

        Raises DrkitError if it is missing without a default, not a string, or not valid Unicode.
        """
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            problem = f"must be a string, got {type(value).__name__}" if key in self.values else "is missing"
            raise DrkitError(f"{key!r} {problem}; columns: {', '.join(self.values)}", where=self)
        return self.check_unicode(value, key)

    def check_unicode(self, value: str, key: str) -> str:
        r"""Return `value`; raise DrkitError if it has an unpaired surrogate, such as `"\ud83d"` alone in JSON."""
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                broken = value[error.start].encode("unicode_escape").decode()
                raise DrkitError(f"{key!r} has {broken}, half a character; write the whole one", where=self) from None
        return value

    def id(self, key: str) -> str:
        """Return the id under `key`, a string or an integer. Raises DrkitError for anything else, and an empty one."""
        value = self.values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) and key in self.values:
            raise DrkitError(f"{key!r} must be a string or an integer, got {type(value).__name__}", where=self)
        if value == "":
            raise DrkitError(f"{key!r} is empty; an id may be any non-empty string", where=self)
        return self.text(key)

    def find(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the keys that have one of the names, compared as `drkit.data.columns.matching` does."""
        return matching(tuple(self.values), tuple(names))

    def first(self, names: Sequence[str], role: str = "", advice: str = "") -> str:
        """Return the first key of `find` with a value; a single name is not checked.

        Raises DrkitError, with the columns and the advice, if none has one; role: what the column has.
        """
        found = self.find(names)
        if len(names) == 1:
            return found[0] if found else names[0]
        for key in found:
            if self.values[key] is not None:
                return key
        raise missing_column(self, names, role, advice)

    def __str__(self) -> str:
        return f"{self.path}: {self.unit} {self.number}" if self.unit else f"{self.path}:{self.number}"


# Names that an error lists.
_NAMES_SHOWN = 6


def missing_column(row: FileRow, names: Sequence[str], role: str = "", advice: str = "") -> DrkitError:
    """Return the error for a row without a column of these names, which has `role`; advice: what to type."""
    named = ", ".join(map(repr, names[:_NAMES_SHOWN])) + (" .." if len(names) > _NAMES_SHOWN else "")
    remedy = f". Name the column of the {role}: {advice}" if advice else ""
    return DrkitError(f"expected one of {named}; columns: {', '.join(row.values)}{remedy}", where=row)


def parse_number(text: str) -> float:
    """Return a number in decimal notation: ASCII digits, at most one point, and perhaps an exponent.

    Raises ValueError for anything else that Python reads as a number: `1_000`, `nan`, digits of other scripts, blanks.

    >>> parse_number("1.5"), parse_number("-2e3")
    (1.5, -2000.0)
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r:.80} is not a number")
    return float(text)


def file_kind(path: Path) -> str:
    """Return the suffix that says what a file is, ignoring `.gz` and `.zst`.

    >>> file_kind(Path("train.jsonl.gz")), file_kind(Path("a.csv"))
    ('.jsonl', '.csv')
    """
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix


def require_file(text: str, subject: str, formats: Sequence[str] = FORMATS) -> Path:
    """Return the path that a setting gives. Raises DrkitError if it is missing or in an unsupported format."""
    path = local_path(text)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise DrkitError(f"{subject}: {path} {problem}; expected a file ({', '.join(formats)})")
    if file_kind(path) not in formats:
        raise DrkitError(
            f"{subject}: {path} has an unsupported format; supported: {', '.join(formats)} (or with .gz, .zst). "
            f"Rename the file if it has one of these"
        )
    return path


def read_rows(path: Path, columns: Columns, *, guess: bool = False) -> Iterator[FileRow]:
    """Stream the rows of a file; columns: of a table (.tsv, .csv).

    guess: take a character that seems to separate the columns for it, although their names are not known.

    Raises DrkitError naming `file:line` at a row that cannot be read.
    """
    kind = file_kind(path)
    if kind in (".jsonl", ".json"):
        return read_jsonl(path)
    return _read_table(path, columns, guess=guess) if kind in _SEPARATORS else _read_parquet(path)


def read_jsonl(path: Path) -> Iterator[FileRow]:
    """Stream the objects of a `.jsonl` file, compressed or not, one per line; of a `.json` file that is a list, too.

    Raises DrkitError naming `file:line` at an empty line, malformed JSON, or a line that is not an object.
    """
    if file_kind(path) == ".json" and _begins_list(path):
        yield from _read_json_list(path)
        return
    for number, line in read_lines(path):
        if not line.strip():
            raise DrkitError("empty line; expected a JSON object, delete the line", where=f"{path}:{number}")
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DrkitError(
                f"malformed JSON ({error}); expected one object per line{_of_list(line)}", where=f"{path}:{number}"
            ) from None
        if not isinstance(values, dict):
            raise DrkitError(
                f"expected a JSON object, got {type(values).__name__}{_of_list(line)}", where=f"{path}:{number}"
            )
        yield FileRow(path, number, values)


def _begins_list(path: Path) -> bool:
    """Return whether a file begins with a list: `[` alone on its line, or before an object."""
    with open_bytes(path) as file:
        try:
            return bool(_LIST.match(file.read(4096)))
        except (OSError, EOFError, zlib.error):  # reported when the file is read
            return False


_LIST = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*(\{|\]|$)")


def _read_json_list(path: Path) -> Iterator[FileRow]:
    """Yield the objects of a file that is a JSON list, one after the other."""
    with open_bytes(path) as file:
        for number, values in read_json_list(path, file, longest=LONGEST_LINE):
            if not isinstance(values, dict):
                raise DrkitError(f"expected a JSON object, got {type(values).__name__}", where=f"{path}:{number}")
            yield FileRow(path, number, values)


def _of_list(line: str) -> str:
    """Return the advice for a line that begins a list of objects, or nothing."""
    return "; write each object of a list on its own line (jq -c '.[]' FILE)" if line.startswith("[") else ""


def _read_parquet(path: Path) -> Iterator[FileRow]:
    """Yield the rows of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            rows = (values for batch in file.iter_batches(1024) for values in batch.to_pylist())
            for number, values in enumerate(rows, start=1):
                yield FileRow(path, number, values, "row")
    except (OSError, pa.ArrowException) as error:
        raise DrkitError(f"cannot be read as Parquet after row {number} ({error})", where=path) from None


# Lines by which a header is distinguished from a row.
_LINES_SEEN = 50


def _read_table(path: Path, columns: Columns, *, guess: bool) -> Iterator[FileRow]:
    separator, usual = _find_separator(path, columns, guess=guess), _SEPARATORS[file_kind(path)]
    lines = _read_cells(path, separator)
    top = list(islice(lines, _LINES_SEEN))
    if not top:
        return
    begin, cells = top[0]
    is_csv = file_kind(path) == ".csv"
    named = header_of(cells, [row for _, row in top[1:]], columns, quoted=is_csv)
    names = [cell.strip() for cell in cells] if named else columns.default_names(len(cells))
    _check_names(names, f"{path}:{begin}")
    other = "" if separator == usual else separator
    for number, row in chain(top[named:], lines):
        if len(row) != len(names):
            raise DrkitError(
                f"expected {len(names)} cells ({', '.join(names)}) separated by {separator!r}, got {len(row)}",
                where=f"{path}:{number}",
            )
        yield FileRow(path, number, dict(zip(names, row, strict=True)), is_headless=not named, separator=other)


def _find_separator(path: Path, columns: Columns, *, guess: bool) -> str:
    """Return what separates the columns of a table: what its ending says, or what its header or settings show.

    Raises DrkitError for a table that another character seems to separate, whose names are not known.
    """
    usual = _SEPARATORS[file_kind(path)]
    lines = [line for _, line in islice(read_lines(path), _LINES_SEEN)]
    if not lines or len(cells := _split(lines[0], usual)) > 1 or (columns.given and columns.given.are_in(cells)):
        return usual
    for other in _OTHER_SEPARATORS:
        names = _split(lines[0], other)
        if len(names) == 1:
            continue
        if columns.given.are_in(names) if columns.given else columns.is_header(names) or all(map(is_known_name, names)):
            return other
        if _separates(other, lines):
            if guess:
                return other
            raise DrkitError(
                f"the columns are separated by {other!r}, not by {usual!r} as in a {file_kind(path)} file, and their "
                f"names are not known; columns: {', '.join(names)}. Name them, as in "
                f"{columns_advice(QUERY_COLUMN, TEXT_COLUMN)}; if each line is one text, put a line `text` before the "
                f"first",
                where=f"{path}:1",
            )
    return usual


def separator_note(row: FileRow | None) -> Iterator[str]:
    """Yield the note that columns have another separator than their file's ending says, if so."""
    if row and row.separator:
        yield f"{row.path}: its columns are separated by {row.separator!r}"


_OTHER_SEPARATORS = "\t;|,"


def _split(line: str, separator: str) -> list[str]:
    """Return the cells of a line, which may be quoted."""
    _allow_long_cells()
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:  # reported when the file is read
        return [line]


def _separates(other: str, lines: Sequence[str]) -> bool:
    """Return whether a character separates as many columns in every line.

    Texts have commas, so that these also need a first line that reads like names.
    """
    names, *rows = (_split(line, other) for line in lines)
    if not rows or any(len(row) != len(names) for row in rows):
        return False
    return other != "," or header_of(names, rows, NamedColumns(((),)), quoted=True)


def _check_names(names: Sequence[str], where: str) -> None:
    if not names:
        raise DrkitError("expected a header line with the names of the columns; add one", where=where)
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise DrkitError(f"the header has {', '.join(map(repr, twice))} twice; rename one of the columns", where=where)


def _read_cells(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of every line: of a .tsv or .txt with tabs never quoted, else quoted if needed."""
    if file_kind(path) != ".csv" and separator == "\t":
        lines: Iterator[tuple[int, list[str]]] = ((number, line.split("\t")) for number, line in read_lines(path))
    else:
        lines = _read_csv(path, separator)
    for number, cells in lines:
        if not any(cells):
            raise DrkitError("empty line; delete it", where=f"{path}:{number}")
        yield number, cells


def _read_csv(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    _allow_long_cells()
    reader = csv.reader((f"{line}\n" for _, line in read_lines(path)), delimiter=separator, strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DrkitError(
            f"{error}; a cell with commas or quotes must be quoted as a whole", where=f"{path}:{reader.line_num}"
        ) from None


def _allow_long_cells() -> None:
    """Raise Python's limit of 128 KiB on cells, which is one for the whole process; documents are longer."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Stream (line number, line) of a UTF-8 text file, compressed or not; numbers start at 1, line ends are removed.

    Raises DrkitError if the file cannot be opened or read, with the last line that was read, or a line is too long.
    """
    number = 0
    with open_bytes(path) as lines:
        try:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE + 1), b""), start=1):
                if len(line) > LONGEST_LINE:
                    raise DrkitError(
                        f"the line has more than {LONGEST_LINE >> 20} MB; split its text, or check "
                        f"that the file is what its name says",
                        where=f"{path}:{number}",
                    )
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DrkitError(
                f"not UTF-8 ({error.reason} at byte {error.start}); convert the file, as in "
                f"`iconv -f windows-1252 -t utf-8 {path.name} > new{file_kind(path)}`",
                where=f"{path}:{number}",
            ) from None
        except (OSError, EOFError, zlib.error) as error:
            raise DrkitError(f"cannot be read after line {number} ({error})", where=path) from None


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file to read its bytes, which `.gz` and `.zst` files have compressed.

    Raises DrkitError if it cannot be opened.
    """
    _LOGGER.info("reading %s", path)
    try:
        if path.suffix == ".zst":
            import pyarrow as pa

            return io.BufferedReader(pa.CompressedInputStream(path.open("rb"), "zstd"), 1 << 20)
        return io.BufferedReader(gzip.GzipFile(path), 1 << 20) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise DrkitError(f"cannot be read ({error.strerror or error})", where=path) from None


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items, the last one possibly shorter, without reading ahead."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch
