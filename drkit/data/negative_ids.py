"""Files of negatives by id: MS MARCO's hard negatives and triples of ids, and what `drkit mine` writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.data.columns import NamedColumns
from drkit.data.rows import FileRow, file_kind, read_rows
from drkit.errors import DrkitError

NEGATIVE_FORMATS = (".jsonl", ".json", ".tsv", ".csv")
# Words in the names of such files.
NEGATIVE_NAMES = ("negatives", "qidpidtriples", "triples")
_QUERY = ("qid", "query_id", "query-id", "_id", "id")
_POSITIVES, _NEGATIVES = ("pos", "positives", "positive"), ("neg", "negatives", "negative")
_TRIPLES = NamedColumns((_QUERY, _POSITIVES, _NEGATIVES), ("qid", "pos", "neg"))


@frozen
class NegativeIds:
    """A query's id with the ids of its positives and negatives, as a line of a file has them."""

    row: FileRow
    query_id: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


def read_negative_ids(path: Path, systems: Sequence[str] = ()) -> Iterator[NegativeIds]:
    """Stream the lines of a file: JSON with the query's id, `pos` and `neg` (or the like), or a table of three ids.

    `neg` is a list of ids, or such a list of each system that found them: these are interleaved, so that the best of
    each come first. systems: only of these; empty: of all. Raises DrkitError naming `file:line` at any other line.
    """
    is_table = file_kind(path) in (".tsv", ".csv")
    for row in read_rows(path, _TRIPLES):
        query_id = row.id(row.first(_QUERY, "query's id"))
        if is_table:
            positive, negative = (row.id(row.first(names)) for names in (_POSITIVES, _NEGATIVES))
            yield NegativeIds(row, query_id, (positive,), (negative,))
            continue
        found = row.find(_POSITIVES)
        positives = _ids(row, found[0], row.values[found[0]]) if found else ()
        yield NegativeIds(row, query_id, positives, _negatives(row, systems))


def systems_of(path: Path) -> tuple[str, ...]:
    """Return the systems whose negatives the first line of a file has; empty if it has a single list."""
    if file_kind(path) in (".tsv", ".csv"):
        return ()
    for row in read_rows(path, _TRIPLES):
        found = row.values.get(row.first(_NEGATIVES, "negatives"))
        return tuple(found) if isinstance(found, dict) else ()
    return ()


def _negatives(row: FileRow, systems: Sequence[str]) -> tuple[str, ...]:
    name = row.first(_NEGATIVES, "negatives")
    given = row.values[name]
    if not isinstance(given, dict):
        if systems:
            raise DrkitError(
                f"{name!r} is one list, not one a system; leave collection.negative_systems out", where=row
            )
        return _ids(row, name, given)
    lists = [_ids(row, f"{name}.{one}", given[one]) for one in (systems or given) if one in given]
    interleaved = (one for one in chain.from_iterable(zip_longest(*lists)) if one is not None)
    return tuple(dict.fromkeys(interleaved))


def _ids(row: FileRow, name: str, value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(one, (str, int)) and not isinstance(one, bool) and one != "" for one in items):
        raise DrkitError(f"{name!r} must be a list of passage ids, got {value!r:.60}", where=row)
    return tuple(map(str, items))
