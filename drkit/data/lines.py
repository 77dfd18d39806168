"""JSON Lines and judgement files, read as streams; whatever is wrong is named as `file:line`."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from attrs import frozen

from drkit.core.types import Judgement
from drkit.errors import DrkitError


@frozen
class JsonLine:
    """One JSON object of a file, and where it stands: `path:number`, counted from 1."""

    path: Path
    number: int
    record: dict[str, Any]

    def text(self, key: str, *, default: str | None = None) -> str:
        """The string under `key`; `default` where the key is absent or null.

        Raises DrkitError where it is absent without a default, or no string.
        """
        value = self.record.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            found = f"is {type(value).__name__}" if key in self.record else "is missing"
            raise DrkitError(f"{self}: {key!r} {found}, a string is wanted; keys here: {', '.join(self.record)}")
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

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


def json_lines(path: Path) -> Iterator[JsonLine]:
    """The objects of a `.jsonl` or `.jsonl.gz` file, one a line.

    Raises DrkitError naming `file:line` at an empty line, malformed JSON, or a line that is no object.
    """
    for number, line in numbered_lines(path):
        if not line.strip():
            raise DrkitError(f"{path}:{number}: empty line; a JSON object is wanted, delete the line")
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DrkitError(f"{path}:{number}: malformed JSON ({error}); one object a line is wanted") from None
        if not isinstance(record, dict):
            raise DrkitError(f"{path}:{number}: {type(record).__name__} found, a JSON object is wanted")
        yield JsonLine(path, number, record)


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
        except (OSError, EOFError) as error:
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
            raise DrkitError(f"{path}:{number}: {line!r} found, 'query-id<TAB>corpus-id<TAB>score' is wanted")
        score = _whole_number(cells[2])
        if score is not None and number == 1:
            raise DrkitError(f"{path}:1: a judgement found, the header 'query-id<TAB>corpus-id<TAB>score' is wanted")
        if number == 1:
            continue
        if score is None:
            raise DrkitError(f"{path}:{number}: the score {cells[2]!r} is no whole number")
        yield number, Judgement(cells[0], cells[1], score)


def _whole_number(text: str) -> int | None:
    try:
        value = float(text)
        return int(value) if value == int(value) else None
    except (ValueError, OverflowError):
        return None


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
