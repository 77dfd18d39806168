"""Lines of files: JSON objects and judgements, read as streams; whatever is wrong is named as `file:line`."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from attrs import frozen

from drkit.core.types import Judgement
from drkit.errors import DrkitError


@frozen
class Record:
    """One object or table row of a file, and where it stands: `path:number`, or `path: row number`, from 1."""

    path: Path | str
    number: int
    record: dict[str, Any]
    unit: str = ""

    def text(self, key: str, *, default: str | None = None) -> str:
        """The string under `key`; `default` where the key is absent or null.

        Raises DrkitError where it is absent without a default, no string, or no Unicode text.
        """
        value = self.record.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            found = f"is {type(value).__name__}" if key in self.record else "is missing"
            raise DrkitError(f"{self}: {key!r} {found}, a string is wanted; keys here: {', '.join(self.record)}")
        return self.sound(value, key)

    def sound(self, value: str, key: str) -> str:
        r"""`value`, unless it holds half a surrogate pair, as `"\ud83d"` alone in JSON does: that is no character."""
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                broken = value[error.start].encode("unicode_escape").decode()
                raise DrkitError(f"{self}: {key!r} holds {broken}, half a character; write it whole") from None
        return value

    def id(self, key: str) -> str:
        """The id under `key`: a string or a whole number, never empty."""
        value = self.record.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        identifier = self.text(key)
        if not identifier:
            raise DrkitError(f"{self}: {key!r} is empty; give every line an id of its own")
        return identifier

    def first(self, keys: Sequence[str]) -> str:
        """The first of `keys` that has a value here, a single one as it is. Raises DrkitError where none has."""
        for key in keys:
            if len(keys) == 1 or self.record.get(key) is not None:
                return key
        wanted = ", ".join(map(repr, keys))
        raise DrkitError(f"{self}: one of {wanted} is wanted; keys here: {', '.join(self.record)}")

    def __str__(self) -> str:
        return f"{self.path}: {self.unit} {self.number}" if self.unit else f"{self.path}:{self.number}"


def json_lines(path: Path) -> Iterator[Record]:
    """The objects of a `.jsonl` or `.jsonl.gz` file, one a line.

    Raises DrkitError naming `file:line` at an empty line, malformed JSON, or a line that is no object.
    """
    for number, line in numbered_lines(path):
        if not line.strip():
            raise DrkitError(f"{path}:{number}: empty line; a JSON object is wanted, delete the line")
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DrkitError(f"{path}:{number}: malformed JSON ({error}); one object a line is wanted") from None
        if not isinstance(record, dict):
            raise DrkitError(f"{path}:{number}: {type(record).__name__} found, a JSON object is wanted")
        yield Record(path, number, record)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 text file, gzipped or not, counted from 1 and without their line ends.

    Raises DrkitError where the file cannot be opened or read, naming the line that was reached.
    """
    number = 0
    with _opened(path) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DrkitError(f"{path}:{number}: not UTF-8 ({error.reason} at byte {error.start})") from None
        except (OSError, EOFError, zlib.error) as error:
            raise DrkitError(f"{path}: cannot be read past line {number} ({error})") from None


def _opened(path: Path) -> IO[bytes]:
    try:
        return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise DrkitError(f"{path}: cannot be read ({error.strerror or error})") from None


def judgement_lines(path: Path) -> Iterator[tuple[int, Judgement]]:
    """The judgements of a BEIR qrels file (tab-separated, with a header) and their line numbers.

    Raises DrkitError naming `file:line` at a line that is not `query-id<TAB>corpus-id<TAB>score`.
    """
    for number, line in numbered_lines(path):
        cells = line.split("\t")
        if len(cells) != 3 or not cells[0] or not cells[1]:
            raise DrkitError(f"{path}:{number}: {line!r:.200} found, 'query-id<TAB>corpus-id<TAB>score' is wanted")
        if number > 1:
            yield number, Judgement(cells[0], cells[1], whole_number(cells[2], f"{path}:{number}"))
        elif is_number(cells[2]):
            raise DrkitError(f"{path}:1: a judgement found, the header 'query-id<TAB>corpus-id<TAB>score' is wanted")


def is_number(text: str) -> bool:
    """Whether a text is a number, which no header is."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def whole_number(text: str, where: str) -> int:
    """A relevance of 32 bits, written `1` or `1.0`. Raises DrkitError where it is none."""
    try:
        value = float(text)
        whole = value == int(value) and abs(value) < 2**31
    except (ValueError, OverflowError):
        whole = False
    if not whole:
        raise DrkitError(f"{where}: the score {text!r:.80} is no whole number of 32 bits")
    return int(value)


def file_summary(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of a file."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}
    except OSError as error:
        raise DrkitError(f"{path}: cannot be read ({error.strerror or error})") from None
