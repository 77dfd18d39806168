"""The values of a column, from a file or elsewhere: one per query, per passage, or per pair of both."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import tee, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from attrs import frozen

from drkit.core.files import local_path
from drkit.core.protocols import ColumnSource
from drkit.core.spec import NoSettings
from drkit.data.column_sources import EncodedByConfig, FileConfig, ModelConfig, VectorsConfig
from drkit.data.columns import NamedColumns
from drkit.data.rows import FileRow, parse_number, read_rows
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.data.corpus import StoredCollection

QUERY, PASSAGE, PAIR = "query", "passage", "pair"
_IDS, _VALUES = ("query_id", "doc_id"), ("value", "score")
# The ids and the scores in a line that has those of all passages of its query.
_DISTILLED = (("positive_ids", "positive_scores"), ("negative_ids", "negative_scores"))
_END = object()
_INTEGER = re.compile(r"-?\d{1,18}")


@frozen
class Value:
    """A value of a query, a passage, or a pair; the id that it does not depend on is empty. row: where it was read."""

    query_id: str
    doc_id: str
    value: float
    row: FileRow | None = None

    def __str__(self) -> str:
        named = (("query", self.query_id), ("passage", self.doc_id))
        return str(self.row or " and ".join(f"{what} {one!r}" for what, one in named if one))

    @property
    def per(self) -> str:
        """What has the value: a query, a passage, or a pair of both."""
        return PAIR if self.query_id and self.doc_id else QUERY if self.query_id else PASSAGE


def read_values(path: Path, name: str) -> Iterator[Value]:
    """Stream the values of the column `name` in a file, which has query_id, doc_id or both, and the value.

    The value is under the column's name, `value` or `score`; in a line with `positive_scores`, each passage has one.
    Raises DrkitError, with file and line, for a row without ids or value, and a value that is not a finite number.
    """
    for row in read_rows(path, NamedColumns([_IDS, (name, *_VALUES)], (*_IDS, _VALUES[0]))):
        if _DISTILLED[0][1] in row.values:
            yield from _distilled(row)
            continue
        key = row.first((name, *_VALUES))
        query_id, doc_id = (row.id(found[0]) if (found := row.find([known])) else "" for known in _IDS)
        if not query_id and not doc_id:
            raise DrkitError(f"expected query_id, doc_id or both; columns: {', '.join(row.values)}", where=row)
        yield Value(query_id, doc_id, _number(row, key, row.values[key]), row)


class ScoredByModel:
    """A cross-encoder's scores of pairs. model: its path or hub id; empty for the run's own re-ranker."""

    def __init__(self, config: ModelConfig | NoSettings, _context: Any) -> None:
        self.model = config.path if isinstance(config, ModelConfig) else ""


class FileValues:
    """The values of a column as a file lists them: one a row, by query id, passage id or both."""

    def __init__(self, config: FileConfig, _context: Any) -> None:
        self.path = local_path(config.path)

    def read(self, column: str, _collection: StoredCollection) -> Iterator[Value]:
        """Yield the values of a column, each of a query, a passage or a pair."""
        return read_values(self.path, column)


class FileVectors:
    """The vectors of a column, which `drkit.search.vector_files` reads from `path`, or that an encoder computes.

    config: the settings of the part.
    """

    def __init__(self, config: VectorsConfig | EncodedByConfig, _context: Any) -> None:
        self.config = config


class GivenScores:
    """The scores that come with the passages in the training rows."""

    def __init__(self, _config: NoSettings, _context: Any) -> None:
        pass

    def read(self, _column: str, collection: StoredCollection) -> Iterator[Value]:
        """Yield the score of each pair."""
        for query_id, scores in collection.teacher_scores("train").items():
            for doc_id, score in scores.items():
                yield Value(query_id, doc_id, score)


def computed_vectors(name: str, source: ColumnSource, scope: str, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each query or passage with the vector that a part computes for it, f[D]. Those with None are left out.

    Raises DrkitError unless the part yields a list or array of numbers, or None, for each item.
    """
    for item, made in _each(name, source, scope, items):
        vector = made.tolist() if hasattr(made, "tolist") else made  # of numpy and torch
        if vector is not None and not (isinstance(vector, (list, tuple)) and vector and all(map(_is_finite, vector))):
            what = f"{scope} {(item.query_id if scope == QUERY else item.doc_id)!r}"
            raise DrkitError(f"the column {name!r} has {made!r:.60} for {what}; expected a vector of finite numbers")
        if vector is not None:
            yield item, vector


def _each(name: str, source: ColumnSource, scope: str, items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each item with its value. Raises DrkitError for more or fewer values than items."""
    kept, given = tee(items)
    values: Iterator[tuple[Any, Any]] = zip_longest(kept, source.values(given), fillvalue=_END)
    for item, made in values:
        if item is _END or made is _END:
            raise DrkitError(f"the column {name!r} yields {'more' if item is _END else 'fewer'} values than {scope}s")
        yield item, made


def computed_values(name: str, source: ColumnSource, scope: str, items: Iterable[Any]) -> Iterator[Value]:
    """Yield what a part computes for items: queries, passages or pairs, by its scope. Those with None are left out.

    Raises DrkitError unless the part yields a finite number, a bool or None for each item.
    """
    for item, made in _each(name, source, scope, items):
        query, passage = {QUERY: (item, None), PASSAGE: (None, item)}.get(scope, item)
        number = made.item() if hasattr(made, "item") else made  # of numpy and torch
        value = Value(query.query_id if query else "", passage.doc_id if passage else "", number)
        if number is not None and not _is_finite(number):
            raise DrkitError(
                f"the column {name!r} has {made!r:.60} for {value}; expected a finite number, bool or None"
            )
        if number is not None:
            yield value


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < 2**63


def _distilled(row: FileRow) -> Iterator[Value]:
    for ids, scores in _DISTILLED:
        found, values = row.values.get(ids), row.values.get(scores)
        if not isinstance(found, list) or not isinstance(values, list) or len(found) != len(values):
            raise DrkitError(f"{ids!r} and {scores!r} must be lists of the same length", where=row)
        for doc_id, score in zip(found, values, strict=True):
            yield Value(row.id("query_id"), str(doc_id), _number(row, scores, score), row)


def _number(row: FileRow, key: str, value: Any) -> float:
    """Return a number or a bool unchanged; a cell of a table is parsed. Raises DrkitError for anything else."""
    if isinstance(value, str) and row.is_of_table:
        try:
            value = int(value) if _INTEGER.fullmatch(value) else parse_number(value)
        except ValueError:
            raise DrkitError(f"{key!r} must be a number, got {value!r:.60}", where=row) from None
    if not _is_finite(value):
        raise DrkitError(f"{key!r} must be a finite number, got {value!r:.60}", where=row)
    return value
