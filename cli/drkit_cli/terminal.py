"""The door to the terminal: everything that commands print has its control characters spelled out.

Ids, texts and names come from files of others. Without this, an id could clear the screen, set the title of the window
or imitate a message. `drkit_cli.render` draws tables and progress with rich, in the same way.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import click

from drkit.core.escaping import escape_controls

# How libraries' progress bars begin a line: back to its start, or to the line above.
_MOVES = re.compile(r"(?:\r|\n|\x1b\[A)*")


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text to standard output, or to standard error."""
    click.echo(escape_controls(text), err=err, nl=nl)


class EscapedStream:
    """A text stream that spells out control characters, for the warnings, bars and tracebacks of libraries."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; the cursor moves of a progress bar, at its start and end, are kept."""
        moves = _MOVES.match(text)
        start = moves.end() if moves else 0
        end = len(text) - text[start:].endswith("\r")
        self.stream.write(text[:start] + escape_controls(text[start:end]) + text[end:])
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def escape_streams() -> None:
    """Put standard output and standard error of this process behind an `EscapedStream`."""
    sys.stdout, sys.stderr = map(EscapedStream, (sys.stdout, sys.stderr))
