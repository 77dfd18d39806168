"""Docstrings read from source files with `ast`, without importing them.

This file is also a worker process, `python -I docstrings.py < paths > docstrings`, and so imports the standard library
only. Parsing uses several cores this way without forking a process with threads or importing its main module again.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

Found = tuple[str, str]  # qualified name within the module ("" for the module itself), docstring
# Empty lines, between the first paragraph and the rest, or within the rest.
_EMPTY_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read_files(paths: list[Path], *, workers: int) -> Iterator[list[Found] | None]:
    """Yield the docstrings of each file, in order; None for a file that cannot be read or parsed."""
    workers = min(workers, 16, 1 + len(paths) // 200)
    if workers == 1:
        yield from map(read_file, paths)
        return
    shares = [paths[start::workers] for start in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        results = [iter(found) for found in pool.map(_in_subprocess, shares)]
    for index in range(len(paths)):
        yield next(results[index % workers])


def _in_subprocess(paths: list[Path]) -> list[list[Found] | None]:
    request = json.dumps([str(path) for path in paths])
    done = subprocess.run(
        [sys.executable, "-I", __file__], input=request, stdout=subprocess.PIPE, check=True, encoding="utf-8"
    )
    found = json.loads(done.stdout)
    return [None if file is None else [(name, text) for name, text in file] for file in found]


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
    json.dump([read_file(Path(path)) for path in json.load(sys.stdin)], sys.stdout)
