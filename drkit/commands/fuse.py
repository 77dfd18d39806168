"""Fuse the rankings in two TREC run files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from drkit.errors import DrkitError
from drkit.search import read_run, write_run

if TYPE_CHECKING:
    from drkit.search.fusion import FusedRow
    from drkit.search.trec import RunRow


def fuse_files(
    first: Path, second: Path, output: Path, fuse: Callable[[Iterator[RunRow], Iterator[RunRow]], Iterator[FusedRow]]
) -> tuple[int, int]:
    """Write the fusion of two run files; returns the number of queries, and how many of them both files rank.

    fuse: for example `reciprocal_ranks`. Memory holds the second file.

    Raises DrkitError for a file that cannot be read (naming the line), or files without a common query.
    """
    ids: tuple[set[str], set[str]] = (set(), set())

    def rows() -> Iterator[FusedRow]:
        yield from fuse(_noted(first, ids[0]), _noted(second, ids[1]))
        if not ids[0] & ids[1]:  # before the file is moved into place
            raise DrkitError(
                f"{first} ({len(ids[0]):,} queries) and {second} ({len(ids[1]):,}) have no query in common; "
                f"give two rankings of the same queries"
            )

    write_run(output, rows(), tag="fused")
    return len(ids[0] | ids[1]), len(ids[0] & ids[1])


def _noted(path: Path, ids: set[str]) -> Iterator[RunRow]:
    """Yield the rows of a run file, and add their queries to `ids`."""
    for query_id, hits in read_run(path):
        ids.add(query_id)
        yield query_id, hits
