"""Columns of training pairs under the names in common use, and what scores and labels in them mean."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import field, frozen

from drkit.data.rows import Row, file_kind, parse_number
from drkit.data.specs import PairSettings
from drkit.errors import DrkitError

ANCHORS = ("anchor", "query", "question", "sentence1", "sentence_A", "premise")
POSITIVES = ("positive", "pos", "positives", "answer", "passage", "document", "sentence2", "sentence_B", "hypothesis")
NEGATIVES = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?")
SCORES = ("score", "label")
# A teacher's scores of the positives, of the negatives, and of both in a list, as FlagEmbedding and
# sentence-transformers write them.
_TEACHER = (("pos_scores", "positive_scores"), ("neg_scores", "negative_scores"), ("scores", *SCORES))
# The score from which a pair is a positive, unless a setting says another.
DEFAULT_SCORE = 0.5


@frozen
class Pair:
    """A query, passages that answer it (relevance 1) or do not (0), and its negatives.

    scores: a teacher's of the positives and negatives, by text.
    """

    anchor: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    relevance: int
    scores: Mapping[str, float] = field(factory=dict)


@frozen
class PairColumns:
    """The columns of a pair that a collection's settings name, or those in common use; and the meaning of its score.

    A pair whose score is at least `min_score` is a positive (None: 0.5 of scores between 0 and 1). score `none`: ignore
    scores.
    """

    names: PairSettings

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether a table's first line names a column of query, passage or score."""
        expected = (self.names.anchor, self.names.positive, *self.names.negatives, *ANCHORS, *POSITIVES, *SCORES)
        return not {name.lower() for name in expected}.isdisjoint(cell.strip().lower() for cell in cells if cell)

    def default_names(self, width: int) -> Sequence[str]:
        """Return names for a table without a header: query, passage, and negatives."""
        return [*("anchor", "positive")[:width], *(f"negative_{number}" for number in range(1, width - 1))]

    def read(self, row: Row) -> Pair:
        """Return the pair in a row. Raises DrkitError if a column is missing, empty, or not text."""
        anchor = row.text(self._column(row, self.names.anchor, ANCHORS, "anchor")).strip()
        positives = _texts(row, self._column(row, self.names.positive, POSITIVES, "positive"))
        columns = self._negative_columns(row)
        negatives = _negatives(row, columns)
        if not anchor or not positives or not all(positives):
            empty = "query" if not anchor else "positive passage"
            raise DrkitError(f"the {empty} is empty; give it a text or delete the row", where=row)
        scores = self._teacher_scores(row, positives, negatives)
        relevance = self._relevance(row, has_negatives=bool(columns))
        return Pair(anchor, tuple(positives), tuple(filter(None, negatives)), relevance, scores)

    def _teacher_scores(self, row: Row, positives: Sequence[str], negatives: Sequence[str]) -> dict[str, float]:
        """Return a teacher's scores by text. Raises DrkitError unless there is a number for each text of a list."""
        found: dict[str, float] = {}
        for names, texts in zip(_TEACHER, (positives, negatives, [*positives, *negatives]), strict=True):
            column = next((name for name in names if _is_teachers(row, name)), None)
            if column is None:
                continue
            given = row.values[column]
            scores = [_number(value) for value in (given if isinstance(given, (list, tuple)) else [given])]
            if len(scores) != len(texts) or None in scores:
                raise DrkitError(
                    f"{column!r} must have a number for each of the {len(texts)} passages, got {given!r:.60}; "
                    f"mend or delete it",
                    where=row,
                )
            for text, score in zip(texts, scores, strict=True):
                found.setdefault(text, float(score or 0))
        return found

    def unread(self, row: Row) -> list[str]:
        """Return the columns of a row that are not read."""
        own = (self._column(row, self.names.anchor, ANCHORS, ""), self._column(row, self.names.positive, POSITIVES, ""))
        read = {*own, *self._negative_columns(row), self._score_column(row), *sum(_TEACHER, ())}
        return [name for name in row.values if name not in read]

    def _column(self, row: Row, own: str, usual: Sequence[str], role: str) -> str:
        names = (own,) if own else usual
        found = next((name for name in names if row.values.get(name) is not None), None)
        if found is None:
            null = next((name for name in names if name in row.values), None)
            if null is not None:
                raise DrkitError(f"{null!r} is null; give it a text or delete the row", where=row)
            raise DrkitError(
                f"no column {' or '.join(map(repr, names))}; columns: {', '.join(row.values)}. Name the column "
                f"of the {role} with --set collection.{role}=COLUMN",
                where=row,
            )
        return found

    def _negative_columns(self, row: Row) -> Sequence[str]:
        missing = [name for name in self.names.negatives if name not in row.values]
        if missing:
            raise DrkitError(f"no column {missing[0]!r}; columns: {', '.join(row.values)}", where=row)
        return self.names.negatives or [name for name in row.values if NEGATIVES.fullmatch(name)]

    def _score_column(self, row: Row) -> str:
        """Return the column of a pair's score, or `none`. Raises DrkitError if a setting needs a missing one."""
        found = next((name for name in SCORES if name in row.values and not _is_teachers(row, name)), "none")
        if found == "none" and not self.names.score and self.names.min_score is not None:
            raise DrkitError(
                f"no column {' or '.join(map(repr, SCORES))} for collection.min_score; columns: "
                f"{', '.join(row.values)}. Name it with --set collection.score=COLUMN",
                where=row,
            )
        return self.names.score or found

    def _relevance(self, row: Row, *, has_negatives: bool) -> int:
        column = self._score_column(row)
        if column == "none":
            return 1
        if has_negatives and not self.names.score:
            raise DrkitError(
                f"a column {column!r} beside negatives is ambiguous: it may score the pair, or the margin "
                f"between the passages. --set collection.score={column} reads it as the pair's, "
                f"--set collection.score=none ignores it",
                where=row,
            )
        value: Any = row.values.get(column)
        if value is None:
            raise DrkitError(
                f"{column!r} is missing; delete the row, or --set collection.score=none takes every pair for a "
                f"positive",
                where=row,
            )
        return self._score(row, column, value)

    def rule(self, row: Row) -> str:
        """Return in words how the score of a row is read; empty without scores."""
        column = self._score_column(row)
        if column == "none":
            return ""
        least = DEFAULT_SCORE if self.names.min_score is None else self.names.min_score
        return f"a {column!r} of at least {least:g} (collection.min_score)"

    def _score(self, row: Row, column: str, value: Any) -> int:
        """Return the relevance of a score. Raises DrkitError if it is not a number, or may have another meaning."""
        is_said = self.names.min_score is not None
        number = _number(value)
        if number is None or not (is_said or (0 <= number <= 1 and "premise" not in row.values)):
            expected = "a number" if is_said else "a number from 0 to 1"
            raise DrkitError(f"{column!r} must be {expected}; got {value!r:.60}. {_MEANINGS}", where=row)
        return int(number >= (DEFAULT_SCORE if self.names.min_score is None else self.names.min_score))


_MEANINGS = (
    "Say what others mean: --set collection.min_score=4 of a scale, here 0 to 5 (lower scores are negatives). "
    "--set collection.score=none ignores the column. Of labels, such as NLI's, keep the pairs of one in the file"
)


def _negatives(row: Row, columns: Sequence[str]) -> list[str]:
    """Return the texts of all columns of negatives. Raises DrkitError for a number, which a table has for a score."""
    texts = [text for column in columns if row.values.get(column) for text in _texts(row, column)]
    number = next((text for text in texts if _number(text) is not None), None)
    if number is not None and is_table(row):
        raise DrkitError(
            f"the negative {number!r} is a number; if it is a score or label, name the columns in a first line, "
            f"as in query,passage,score",
            where=row,
        )
    return texts


def _is_teachers(row: Row, name: str) -> bool:
    """Return whether a column has a teacher's scores: a list of several, or a name that no other column has."""
    value = row.values.get(name)
    if name in _TEACHER[2]:
        return isinstance(value, (list, tuple)) and len(value) > 1
    return value is not None and value != []


def is_table(row: Row) -> bool:
    """Return whether a row is of a .tsv or .csv file."""
    return file_kind(Path(row.path)) in (".tsv", ".csv")


def _number(value: Any) -> float | None:
    """Return a number, or None for anything else."""
    try:
        number = parse_number(value) if isinstance(value, str) else float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def _texts(row: Row, column: str) -> list[str]:
    """Return the text of a column, or its list of texts."""
    value = row.values[column]
    if isinstance(value, str):
        return [row.text(column).strip()]
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        advice = "; passages with ids are read by tevatron:PATH" if "{" in repr(value)[:2] else ""
        raise DrkitError(f"{column!r} must be a text or a list of texts, got {value!r:.60}{advice}", where=row)
    return [row.check_unicode(text, column).strip() for text in value]
