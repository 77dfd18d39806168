"""Printing to the terminal: control characters in everything that commands print are spelled out.

Ids, texts and names come from files of others. Without this, an id could clear the screen, set the title of the window
or imitate a message. `drkit_cli.render` draws tables and progress with rich, in the same way.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

import click

from drkit.core.escaping import escape_controls

# How libraries' progress bars begin a line: back to its start, or to the line above.
_MOVES = re.compile(r"(?:\r|\n|\x1b\[A)*")
_STDOUT, _STDERR = 1, 2


# Where results go while a command runs (`only_results`); None: to standard output.
_results: TextIO | None = None


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text to standard output, or to standard error."""
    click.echo(escape_controls(text), file=None if err else _results, err=err, nl=nl)


def results_stream() -> TextIO:
    """Return the stream that results are written to."""
    return _results or sys.stdout


@contextmanager
def only_results() -> Iterator[None]:
    """Let only `echo`, and tables, write to standard output: what parts and libraries print goes to standard error.

    So does what their C code and the programs that they start write to file descriptor 1.
    """
    global _results
    before = _results
    with _descriptor_of_results(results_stream()) as _results:
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _results = before


@contextmanager
def _descriptor_of_results(results: TextIO) -> Iterator[TextIO]:
    """Lead file descriptor 1 to standard error; yields a stream to where it led, or `results` if that is elsewhere.

    It stays where it is if an argument of the command names it, as `-o /dev/stdout` does.
    """
    try:
        if results.fileno() != _STDOUT or any(map(_is_standard_output, sys.argv[1:])):
            raise io.UnsupportedOperation
        results.flush()
        own = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
    except (OSError, ValueError):  # in memory, or closed
        yield results
        return
    try:
        with os.fdopen(own, "w", encoding=results.encoding, errors=results.errors, closefd=False) as stream:
            yield cast(TextIO, EscapedStream(stream))
    finally:
        os.dup2(own, _STDOUT)
        os.close(own)


def _is_standard_output(argument: str) -> bool:
    try:
        named = Path(argument.partition("=")[2] if argument.startswith("--") else argument).stat()
    except (OSError, ValueError):  # no file
        return False
    return os.path.samestat(named, os.fstat(_STDOUT))


@contextmanager
def ending_with_the_reader(descriptor: int = _STDOUT) -> Iterator[None]:
    """End the program with 0 if the reader of its output closes the pipe, as `| head` does once it has read enough.

    descriptor: that of the output.
    """
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)  # what is still buffered goes nowhere
        raise click.exceptions.Exit(0) from None


class EscapedStream:
    """A text stream that spells out control characters, for the warnings, bars and tracebacks of libraries."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; the cursor moves of a progress bar, at its start and end, are kept."""
        moves = _MOVES.match(text)
        start = moves.end() if moves else 0
        end = len(text) - text[start:].endswith("\r")
        with ending_with_the_reader(self._descriptor()):
            self.stream.write(text[:start] + escape_controls(text[start:end]) + text[end:])
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with ending_with_the_reader(self._descriptor()):
            self.stream.flush()

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def _descriptor(self) -> int:
        try:
            return self.stream.fileno()
        except (OSError, ValueError):  # in memory, or closed
            return _STDOUT

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def escape_streams() -> None:
    """Put standard output and standard error of this process behind an `EscapedStream`; a closed one swallows texts."""
    sys.stdout, sys.stderr = (EscapedStream(stream or io.StringIO()) for stream in (sys.stdout, sys.stderr))
