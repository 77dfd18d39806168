"""Docstrings read from source files with `ast`, without importing them.

This file is also a worker process, `python -I docstrings.py < paths > docstrings`, and so imports the standard library
only. Parsing uses several cores this way without forking a process with threads or importing its main module again.
"""

from __future__ import annotations

import ast
import gc
import json
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

Found = tuple[str, str]  # qualified name within the module ("" for the module itself), docstring
# Empty lines, between the first paragraph and the rest, or within the rest.
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
# Seconds after which a silent worker is looked at.
_PATIENCE = 1.0
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read_files(paths: list[Path], *, workers: int) -> Iterator[list[Found] | None]:
    """Yield the docstrings of each file, in order, as they are read; None for a file that cannot be read or parsed."""
    workers = min(workers, 16, 1 + len(paths) // 200)
    if workers == 1:
        yield from map(read_file, paths)
        return
    found: list[SimpleQueue[list[Found] | None]] = [SimpleQueue() for _ in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(_in_subprocess, paths[start::workers], found[start]) for start in range(workers)]
        for index in range(len(paths)):
            yield _next_of(found[index % workers], running[index % workers])


def _next_of(found: SimpleQueue[list[Found] | None], running: Future[None]) -> list[Found] | None:
    """Return the next result of a worker. Raises what the worker raised, if it ended before."""
    while True:
        try:
            return found.get(timeout=_PATIENCE)
        except Empty:
            if running.done() and found.empty():
                running.result()
                raise


def _in_subprocess(paths: list[Path], found: SimpleQueue[list[Found] | None]) -> None:
    """Read files in another process, and put the docstrings of each into a queue. Raises CalledProcessError."""
    command = [sys.executable, "-I", __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([str(path) for path in paths]))
        process.stdin.close()
        for line in process.stdout:
            file = json.loads(line)
            found.put(None if file is None else [(name, text) for name, text in file])
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def read_file(path: Path) -> list[Found] | None:
    """Return the docstrings of one source file, outermost first; None if it cannot be read or parsed."""
    try:
        source = path.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(_docstrings(ast.parse(source), ""))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _docstrings(node: ast.AST, name: str) -> Iterator[Found]:
    if isinstance(node, (ast.Module, *_NAMED)) and (text := ast.get_docstring(node)):
        # An unpaired surrogate, written as an escape, cannot be encoded.
        yield name, text.encode("utf-8", "replace").decode()
    for child in _statements(node):
        inner = child.name if isinstance(child, _NAMED) else ""
        yield from _docstrings(child, ".".join(filter(None, (name, inner))))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements inside a statement; only these can contain definitions, so expressions are skipped."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        children = getattr(node, field, None)
        if isinstance(children, list):
            yield from children


def summary_and_rest(docstring: str) -> tuple[str, str]:
    r"""Split a docstring into its first paragraph, on one line, and the rest (possibly empty), with its own lines.

    >>> summary_and_rest("Add two\nnumbers.\n\n\n  Both are\n  integers.\n")
    ('Add two numbers.', 'Both are\nintegers.')
    """
    first, *rest = _EMPTY_LINES.split(docstring.strip(), maxsplit=1)
    lines = (line.rstrip() for line in textwrap.dedent("".join(rest)).splitlines())
    return " ".join(first.split()), _EMPTY_LINES.sub("\n\n", "\n".join(lines))


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    gc.disable()  # trees have no cycles, and looking for some is a quarter of the time
    for source in json.load(sys.stdin):
        sys.stdout.write(f"{json.dumps(read_file(Path(source)))}\n")
        sys.stdout.flush()
