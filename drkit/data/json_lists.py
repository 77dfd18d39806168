"""A JSON list in a file, one item after the other: only a piece of the file and an item are in memory."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from drkit.errors import DrkitError

_PIECE = 1 << 20
_DECODER = json.JSONDecoder()
_NOT_BLANK = re.compile(r"[^ \t\r\n]")


def read_json_list(path: Path, file: IO[bytes], *, longest: int) -> Iterator[tuple[int, Any]]:
    """Yield (line, item) of the list in an open file.

    path: its path, for errors. longest: characters of an item. Raises DrkitError naming `file:line` for malformed JSON.
    """
    reader = _Reader(path, file, longest)
    reader.expect("[")
    while not reader.skips("]"):
        line = reader.line
        yield line, reader.value()
        if not reader.skips(","):
            reader.expect("]")
            break
    reader.end()


class _Reader:
    """Reads a JSON text piece by piece; `line` is where it stands."""

    def __init__(self, path: Path, file: IO[bytes], longest: int) -> None:
        self._path, self._file, self._longest = path, file, longest
        self._text, self._at = "", 0
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._line, self._ended = 1, False

    @property
    def line(self) -> int:
        """The line of the next sign that is not a blank."""
        self._skip_blanks()
        return self._line + self._text.count("\n", 0, self._at)

    def skips(self, sign: str) -> bool:
        """Skip a sign if it is next, and return whether it was."""
        self._skip_blanks()
        found = self._text.startswith(sign, self._at)
        self._at += found
        return found

    def expect(self, sign: str) -> None:
        """Skip a sign. Raises DrkitError if another is next."""
        if not self.skips(sign):
            raise self._malformed(f"expected {sign!r}")

    def end(self) -> None:
        """Raise DrkitError if anything but blanks follows."""
        self._skip_blanks()
        if self._at < len(self._text):
            raise self._malformed("text after the list")

    def value(self) -> Any:
        """Return the next value, reading on until it is complete."""
        self._skip_blanks()
        while True:
            try:
                value, self._at = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._malformed("nested too deep") from None
            except ValueError as error:
                if len(self._text) - self._at > self._longest or not self._read():
                    raise self._malformed(str(error).partition(":")[0]) from None
            else:
                return value

    def _skip_blanks(self) -> None:
        while not (found := _NOT_BLANK.search(self._text, self._at)):
            self._at = len(self._text)
            if not self._read():
                return
        self._at = found.start()

    def _read(self) -> bool:
        """Read a piece, at least as long as what is left of the text; return whether there was one."""
        if self._ended:
            return False
        try:
            data = self._file.read(max(_PIECE, len(self._text) - self._at))
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise DrkitError(f"not UTF-8 ({error.reason})", where=f"{self._path}:{self._line}") from None
        except (OSError, EOFError, zlib.error) as error:
            raise DrkitError(f"cannot be read after line {self._line} ({error})", where=self._path) from None
        self._line += self._text.count("\n", 0, self._at)
        self._text, self._at, self._ended = self._text[self._at :] + text, 0, not data
        return not self._ended

    def _malformed(self, what: str) -> DrkitError:
        where = f"{self._path}:{self._line + self._text.count(chr(10), 0, self._at)}"
        return DrkitError(f"malformed JSON ({what}) in a list of objects; the file may be truncated", where=where)
