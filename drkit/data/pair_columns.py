"""The columns of training pairs in files: query, passage, negatives, and what a score means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Any

from attrs import field, frozen

from drkit.data.column_advice import label_lines, pair_advice
from drkit.data.columns import (
    ANCHORS,
    ARTICLE,
    NEGATIVE,
    POSITIVE,
    POSITIVES,
    QUERY_COLUMN,
    SCORE,
    SCORE_NAMES,
    TEXT_COLUMN,
    GivenColumns,
    columns_advice,
    fold,
    is_negative,
    looks_like_ids,
    matching,
)
from drkit.data.rows import FileRow, parse_number
from drkit.data.specs import PairSettings
from drkit.errors import DrkitError

# A teacher's scores of the positives, of the negatives, and of both in a list, as FlagEmbedding and
# sentence-transformers write them.
_TEACHER = (("pos_scores", "positive_scores"), ("neg_scores", "negative_scores"), ("scores", *SCORE_NAMES))
# Words below which an article may be a title.
_FEW_WORDS = 8
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


@frozen(slots=False)
class PairColumns:
    """The columns of a pair that a collection's settings name, or those in common use; and the meaning of its score.

    A pair whose score is at least `min_score` is a positive (None: 0.5 of scores between 0 and 1). score `none`: ignore
    scores.
    """

    names: PairSettings

    @cached_property
    def given(self) -> GivenColumns:
        """The columns that settings name, by role; `text` means the positive."""
        columns = {POSITIVE if role == TEXT_COLUMN else role: name for role, name in self.names.columns.items()}
        score = "" if self.names.score == "none" else self.names.score
        own = {
            QUERY_COLUMN: self.names.anchor,
            POSITIVE: self.names.positive,
            NEGATIVE: self.names.negatives,
            SCORE: score,
        }
        return GivenColumns.of(columns, own).only(QUERY_COLUMN, POSITIVE, NEGATIVE, SCORE)

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether a table's first line names a column of query, passage or score."""
        given = self.given
        if given.are_numbers:
            return bool(given.is_header(cells))
        named = (name for names in given.by_role.values() for name in names)
        return bool(matching(tuple(cells), (*named, *ANCHORS, *POSITIVES, *SCORE_NAMES)))

    def default_names(self, width: int) -> Sequence[str]:
        """Return names for a table without a header: query, passage, and negatives."""
        usual = [*("anchor", "positive")[:width], *(f"negative_{number}" for number in range(1, width - 1))]
        return self.given.default_names(width) or usual

    def check(self, rows: Sequence[FileRow]) -> None:
        """Raise DrkitError for first rows whose query or passage looks like an id; columns that are named are believed.

        Ids are not texts: an encoder would learn to match numbers.
        """
        given = self.given
        if rows and not given.has(POSITIVE):
            self._refuse_contexts(rows[0])
            self._refuse_names(rows)
        for role, usual in ((QUERY_COLUMN, ANCHORS), (POSITIVE, POSITIVES)):
            found = [name for row in rows[:1] for name in row.find(usual)[:1]]
            values = [row.values.get(name) for name in found for row in rows]
            texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
            known = [text for text in texts if isinstance(text, str)]
            if known and not given.has(role) and len(known) == len(texts) and looks_like_ids(known):
                queries = self._find(rows[0], QUERY_COLUMN)
                labels = (
                    f", or {label_lines(rows[0].path, queries[0], found[0])}" if role == POSITIVE and queries else ""
                )
                raise DrkitError(
                    f"the column {found[0]!r} has ids or numbers ({known[0]!r:.40}), not texts; columns: "
                    f"{', '.join(rows[0].values)}. Labels by id are read beside their texts, by trec:FOLDER or "
                    f"beir:FOLDER{labels}; if other columns have the texts, name them: "
                    f"{columns_advice(QUERY_COLUMN, TEXT_COLUMN)}",
                    where=rows[0],
                )

    def _refuse_names(self, rows: Sequence[FileRow]) -> None:
        """Raise DrkitError for articles of a few words: these may be titles of articles that are elsewhere."""
        row, queries, found = rows[0], self._find(rows[0], QUERY_COLUMN), self._find(rows[0], POSITIVE)
        if not queries or not found or fold(found[0]) != ARTICLE:
            return
        values = [str(value) for one in rows if (value := one.values.get(found[0]))]
        if values and not looks_like_ids(values) and median(len(value.split()) for value in values) < _FEW_WORDS:
            raise DrkitError(
                f"the column {found[0]!r} has {values[0]!r:.40} and the like: texts, or titles of articles; columns: "
                f"{', '.join(row.values)}. {pair_advice(row.path, queries[0], found[0], are_ids=False)}",
                where=row,
            )

    def _refuse_contexts(self, row: FileRow) -> None:
        """Raise DrkitError for answers beside the contexts that have them: either may be the passages."""
        found, contexts = self._find(row, POSITIVE)[:1], row.find(("context", "contexts"))[:1]
        queries = self._find(row, QUERY_COLUMN)[:1]
        if found and contexts and queries:
            lines = [f"--columns query={queries[0]},text={name}" for name in (*contexts, *found)]
            raise DrkitError(
                f"the passages may be the column {contexts[0]!r} or {found[0]!r}; columns: {', '.join(row.values)}. "
                f"Name one: {' or '.join(lines)}",
                where=row,
            )

    def describe_names(self, row: FileRow) -> str:
        """Return in words which columns are the query and the passage, unless they have their plain names."""
        if row.is_headless:
            return ""
        found = {role: self._find(row, role)[:1] for role in (QUERY_COLUMN, POSITIVE)}
        plain = {*ANCHORS[:6], *POSITIVES[:9]}
        if all(names and names[0] in plain for names in found.values()):
            return ""
        return ", ".join(f"{names[0]!r} is the {role}" for role, names in found.items() if names)

    def _find(self, row: FileRow, role: str) -> tuple[str, ...]:
        return row.find(self.given.names(role, ANCHORS if role == QUERY_COLUMN else POSITIVES))

    def read(self, row: FileRow) -> Pair:
        """Return the pair in a row. Raises DrkitError if a column is missing, empty, or not text."""
        anchor = row.text(self._column(row, QUERY_COLUMN)).strip()
        positives = _texts(row, self._column(row, POSITIVE))
        columns = self._negative_columns(row)
        negatives = _negatives(row, columns)
        if not anchor or not positives or not all(positives):
            empty = "query" if not anchor else "positive passage"
            raise DrkitError(f"the {empty} is empty; give it a text or delete the row", where=row)
        scores = self._teacher_scores(row, positives, negatives)
        relevance = self._relevance(row, has_negatives=bool(columns))
        return Pair(anchor, tuple(positives), tuple(filter(None, negatives)), relevance, scores)

    def _teacher_scores(self, row: FileRow, positives: Sequence[str], negatives: Sequence[str]) -> dict[str, float]:
        """Return a teacher's scores by text. Raises DrkitError unless there is a number for each text of a list."""
        found: dict[str, float] = {}
        for names, texts in zip(_TEACHER, (positives, negatives, [*positives, *negatives]), strict=True):
            column = next((name for name in row.find(names) if _is_teachers(row, name)), None)
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

    def unread_columns(self, row: FileRow) -> list[str]:
        """Return the columns of a row that are not read."""
        own = [self._find(row, role)[:1] for role in (QUERY_COLUMN, POSITIVE)]
        read = {*sum(own, ()), *self._negative_columns(row), self._score_column(row), *row.find(sum(_TEACHER, ()))}
        return [name for name in row.values if name not in read]

    def _column(self, row: FileRow, role: str) -> str:
        found = self._find(row, role)
        present = next((name for name in found if row.values[name] is not None), None)
        if present is None and found:
            raise DrkitError(f"{found[0]!r} is null; give it a text or delete the row", where=row)
        if present is None:
            usual = self.given.names(role, ANCHORS if role == QUERY_COLUMN else POSITIVES)
            setting = "anchor" if role == QUERY_COLUMN else "positive"
            names = " or ".join(map(repr, usual[:6])) + " .." * (len(usual) > 6)
            raise DrkitError(
                f"no column {names}; columns: {', '.join(row.values)}. Name the column "
                f"of the {setting} with --set collection.{setting}=COLUMN, or both: "
                f"{columns_advice(QUERY_COLUMN, TEXT_COLUMN)}",
                where=row,
            )
        return present

    def _negative_columns(self, row: FileRow) -> Sequence[str]:
        named = self.given.names(NEGATIVE, ())
        missing = [name for name in named if not row.find([name])]
        if missing:
            raise DrkitError(f"no column {missing[0]!r}; columns: {', '.join(row.values)}", where=row)
        if self.given.are_numbers:
            return named
        return row.find(named) or [name for name in row.values if is_negative(name)]

    def _score_column(self, row: FileRow) -> str:
        """Return the column of a pair's score, or `none`. Raises DrkitError if a setting needs a missing one."""
        given = self.given.names(SCORE, ())
        if given or self.names.score:
            return next(iter(row.find(given)), given[0]) if given else self.names.score
        found = next((name for name in row.find(SCORE_NAMES) if not _is_teachers(row, name)), "none")
        if found == "none" and self.names.min_score is not None:
            raise DrkitError(
                f"no column {' or '.join(map(repr, SCORE_NAMES))} for collection.min_score; columns: "
                f"{', '.join(row.values)}. Name it with --set collection.score=COLUMN",
                where=row,
            )
        return found

    def _relevance(self, row: FileRow, *, has_negatives: bool) -> int:
        """Return the relevance of a pair by its score.

        Raises DrkitError if the score is missing, not a number, or may have another meaning.
        """
        column = self._score_column(row)
        if column == "none":
            return 1
        if has_negatives and not self.given.has(SCORE):
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
        number, is_set = _number(value), self.names.min_score is not None
        if number is None or not (is_set or (0 <= number <= 1 and not row.find(["premise"]))):
            expected = "a number" if is_set else "a number from 0 to 1"
            raise DrkitError(f"{column!r} must be {expected}; got {value!r:.60}. {_MEANINGS}", where=row)
        return int(number >= self._lowest_score)

    @property
    def _lowest_score(self) -> float:
        return DEFAULT_SCORE if self.names.min_score is None else self.names.min_score

    def describe_score(self, row: FileRow) -> str:
        """Return in words how the score of a row is read; empty without scores."""
        column = self._score_column(row)
        if column == "none":
            return ""
        return f"a {column!r} of at least {self._lowest_score:g} (collection.min_score)"


_MEANINGS = (
    "Say what others mean: --set collection.min_score=4 for a scale, here 0 to 5 (lower scores are negatives). "
    "--set collection.score=none ignores the column. Of labels, such as NLI's, keep the pairs of one in the file"
)


def _negatives(row: FileRow, columns: Sequence[str]) -> list[str]:
    """Return the texts of all columns of negatives. Raises DrkitError for a number, which a table has for a score."""
    texts = [text for column in columns if row.values.get(column) for text in _texts(row, column)]
    number = next((text for text in texts if _number(text) is not None), None)
    if number is not None and row.is_of_table:
        raise DrkitError(
            f"the negative {number!r} is a number; if it is a score or label, name the columns in a first line, "
            f"as in query,passage,score",
            where=row,
        )
    return texts


def _is_teachers(row: FileRow, name: str) -> bool:
    """Return whether a column has a teacher's scores: a list of several, or a name that no other column has."""
    value = row.values.get(name)
    if matching((name,), _TEACHER[2]):
        return isinstance(value, (list, tuple)) and len(value) > 1
    return value is not None and value != []


def _number(value: Any) -> float | None:
    """Return a number, or None for anything else."""
    try:
        number = parse_number(value) if isinstance(value, str) else float(value)
    except (OverflowError, TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def _texts(row: FileRow, column: str) -> list[str]:
    """Return the text of a column, or its list of texts."""
    value = row.values[column]
    if isinstance(value, str):
        return [row.text(column).strip()]
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        advice = "; passages with ids are read by tevatron:PATH" if "{" in repr(value)[:2] else ""
        raise DrkitError(f"{column!r} must be a text or a list of texts, got {value!r:.60}{advice}", where=row)
    return [row.check_unicode(text, column).strip() for text in value]
