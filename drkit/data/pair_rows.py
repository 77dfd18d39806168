"""Rows of training data, a query, its passage and negatives as texts, read as passages, queries and judgements.

Texts have no ids there, so each is called by its hash: the same text is the same passage, or query, wherever it stands.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from drkit.core.types import Judgement, Passage, Query
from drkit.data.lines import Record
from drkit.data.records import row_of
from drkit.data.splits import HeldOut
from drkit.errors import DrkitError

ANCHORS = ("anchor", "query", "question", "sentence1", "sentence_A")
POSITIVES = ("positive", "pos", "positives", "answer", "passage", "document", "sentence2", "sentence_B")
NEGATIVES = ("negative", "neg", "negatives")
SCORES = ("score", "label")
# What the columns of a table without a header are taken for.
UNNAMED = ("anchor", "positive", "negative_*")
_NUMBERED = re.compile(r"negative_?\d+")

Rows = Callable[[], Iterator[Record]]


def text_id(text: str) -> str:
    """The id of a text: 80 bits of its hash, in hexadecimal."""
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


@frozen
class PairColumns:
    """Which columns hold what; where empty, the names that people use are looked for.

    score: of a pair, `min_score` or more says that the passage answers the query; `none`: a score is not read.
    """

    anchor: str = ""
    positive: str = ""
    negatives: tuple[str, ...] = ()
    score: str = ""
    min_score: float = 0.5

    def header(self, cells: Sequence[str]) -> Sequence[str] | None:
        """The names in a table's first line, where a query's and a passage's are among them."""
        wanted = ((self.anchor, ANCHORS), (self.positive, POSITIVES))
        return cells if all({own} & {*cells} if own else {*usual} & {*cells} for own, usual in wanted) else None

    def read(self, row: Record) -> Pair:
        """What a row says. Raises DrkitError where a column is missing, empty, or no text."""
        anchor = row.text(self._present(row, self.anchor, ANCHORS, "anchor")).strip()
        positives = _texts(row, self._present(row, self.positive, POSITIVES, "positive"))
        columns = self._negatives(row)
        negatives = [text for column in columns if row.record.get(column) for text in _texts(row, column)]
        if not anchor or not positives or not all(positives):
            what = "query" if not anchor else "positive passage"
            raise DrkitError(f"{row}: the {what} is empty; give it a text or delete the row")
        relevance = self._relevance(row, with_negatives=bool(columns))
        return Pair(anchor, tuple(positives), tuple(filter(None, negatives)), relevance)

    def _present(self, row: Record, own: str, usual: Sequence[str], what: str) -> str:
        names = (own,) if own else usual
        found = next((name for name in names if row.record.get(name) is not None), None)
        if found is None:
            raise DrkitError(
                f"{row}: no column {' or '.join(map(repr, names))}; columns here: {', '.join(row.record)}; "
                f"--set collection.{what}=COLUMN names it"
            )
        return found

    def _negatives(self, row: Record) -> Sequence[str]:
        missing = [name for name in self.negatives if name not in row.record]
        if missing:
            raise DrkitError(f"{row}: no column {missing[0]!r}; columns here: {', '.join(row.record)}")
        return self.negatives or [n for n in row.record if n in NEGATIVES or _NUMBERED.fullmatch(n)]

    def _relevance(self, row: Record, *, with_negatives: bool) -> int:
        column = self.score or next((name for name in SCORES if row.record.get(name) is not None), "none")
        if column == "none":
            return 1
        if with_negatives and not self.score:
            raise DrkitError(
                f"{row}: a column {column!r} beside negatives may mean the pair or their margin; "
                f"--set collection.score={column} reads it as the pair's, --set collection.score=none leaves it"
            )
        value = row.record.get(column)
        try:
            return int(float(value) >= self.min_score)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise DrkitError(f"{row}: {column!r} is {value!r:.60}, a number is wanted") from None


@frozen
class Pair:
    """A query, passages that answer it (relevance 1) or do not (0), and its negatives."""

    anchor: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    relevance: int


def _texts(row: Record, column: str) -> list[str]:
    """A column's text, or its list of texts."""
    value = row.record[column]
    if isinstance(value, str):
        return [row.text(column).strip()]
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise DrkitError(f"{row}: {column!r} is {value!r:.60}, a text or a list of texts is wanted")
    return [row.sound(text, column).strip() for text in value]


@frozen
class PairTables:
    """Rows of training data as the tables of a collection, each read anew from the rows.

    sources: the rows of each split that has its own; `held_out` says which queries of them are whose. Memory: the
    hashes of all passages while they are read.
    """

    sources: Mapping[str, Rows]
    columns: PairColumns
    held_out: HeldOut

    def passages(self) -> Iterator[Passage]:
        """Every passage, positives and negatives, once."""
        seen: set[int] = set()
        for rows in self.sources.values():
            for row in rows():
                pair = self.columns.read(row)
                for text in (*pair.positives, *pair.negatives):
                    name = text_id(text)
                    if (number := int(name, 16)) not in seen:
                        seen.add(number)
                        yield Passage(name, text)

    def queries(self, split: str) -> Iterator[Query]:
        """The queries of a split, each once."""
        return (query for _, query in self.placed_queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The judgements of a split, one a pair."""
        return (judgement for _, judgement in self._placed_judgements(split))

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """(query id, passage id) of every negative of a split."""
        return (ids for _, ids in self._placed_negatives(split))

    def locate(self, table: str, split: str, row: int) -> str:
        """Where row `row` of the queries, judgements or negatives was read."""
        tables: Mapping[str, Callable[[str], Iterator[tuple[Record, Any]]]] = {
            "queries": self.placed_queries,
            "judgements": self._placed_judgements,
            "negatives": self._placed_negatives,
        }
        return row_of(tables[table](split), row) if table in tables else ""

    def placed_queries(self, split: str) -> Iterator[tuple[Record, Query]]:
        """The queries of a split with where each stands first."""
        seen: set[str] = set()
        for row, pair in self._pairs(split):
            name = text_id(pair.anchor)
            if name not in seen:
                seen.add(name)
                yield row, Query(name, pair.anchor)

    def _placed_judgements(self, split: str) -> Iterator[tuple[Record, Judgement]]:
        for row, pair in self._pairs(split):
            for text in pair.positives:
                yield row, Judgement(text_id(pair.anchor), text_id(text), pair.relevance)

    def _placed_negatives(self, split: str) -> Iterator[tuple[Record, tuple[str, str]]]:
        for row, pair in self._pairs(split):
            yield from ((row, (text_id(pair.anchor), text_id(text))) for text in pair.negatives)

    def _pairs(self, split: str) -> Iterator[tuple[Record, Pair]]:
        for row in self.sources[self.held_out.source(split)]():
            pair = self.columns.read(row)
            if self.held_out.contains(split, text_id(pair.anchor)):
                yield row, pair
