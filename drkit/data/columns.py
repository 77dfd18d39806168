"""Columns of users' files: the names in use for each role, headers, and how a file without these names is read.

Names are compared without case, spaces, dashes, dots and underscores: `Query-ID` is `query_id`. A file whose columns
have other names is refused, unless settings name them: by names, or by numbers from 1 in a table without a header.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from statistics import median
from typing import Any, Protocol, TypeVar

from attrs import field, frozen

from drkit.errors import DrkitError

Item = TypeVar("Item")
ID_COLUMN, TITLE, TEXT_COLUMN = "id", "title", "text"
ARTICLE, QUERY_ID, QUERY_COLUMN, POSITIVE, NEGATIVE, SCORE = (
    "article",
    "query_id",
    "query",
    "positive",
    "negative",
    "score",
)
# The name of no column, for a score or a title that is not read.
_NONE = "none"
# Rows from which the columns of a file are judged.
SAMPLED_ROWS = 100

ID_NAMES = (
    *("_id", "id", "docid", "doc_id", "docno", "pid", "passage_id", "psg_id", "document_id", "article_id"),
    *("paragraph_id", "chunk_id", "corpus_id", "uid", "uuid"),
)
TITLE_NAMES = ("title", "subject", "headline", "heading")
TEXT_NAMES = (
    *("text", "contents", "content", "passage", "body", "document", "paragraph", "chunk", "article"),
    *("passage_text", "document_text", "doc_text", "article_text", "full_text", "page_content"),
)
QUERY_IDS = ("_id", "id", "query_id", "query-id", "qid", "question_id", "topic_id")
QUERY_NAMES = ("text", "query", "question", "title", "query_text", "question_text")
ANCHORS = (
    *("anchor", "query", "question", "sentence1", "sentence_A", "premise"),
    *("query_text", "question_text", "search_query", "search_term", "user_query"),
)
POSITIVES = (
    *("positive", "pos", "positives", "answer", "passage", "document", "sentence2", "sentence_B", "hypothesis"),
    *("response", "positive_passage", "positive_document", "positive_text", "answer_text", "passage_text"),
    *("document_text", "article", "article_text", "text", "content", "contents", "body", "paragraph", "chunk"),
)
SCORE_NAMES = ("score", "label", "relevance")
# Names of queries alone, which texts do not have beside them.
ASKED = ("query", "question", "query_text", "question_text", "search_query", "search_term", "user_query")
_NEGATIVE = re.compile(r"(hard)?neg(ative)?s?(passages?|documents?|texts?)?\d*")
# Names that headers have beside those of the roles.
_OTHER = (
    *("similarity", "relevance", "rank", "rating", "grade", "class", "category", "topic", "tags", "type", "split"),
    *("language", "lang", "locale", "url", "link", "date", "timestamp", "author", "source", "name", "index", "number"),
    *("answers", "value", "values", "key", "summary", "abstract", "description", "context", "comment", "metadata"),
    *("sentence", "teacher_score", "pos_scores", "neg_scores", "prompt", "dataset", "iteration"),
)
_NEGLIGIBLE = frozenset(("metadata", "url", "date", "timestamp", "author", "source", "language", "lang", "tags"))
_SEPARATORS = re.compile(r"[\s._-]+")
_NUMBER = re.compile(r"[+-]?[\d.,]+%?")
# A name has letters, at most four words, and no sign that only sentences have.
_NAME = re.compile(r"(?=.*[^\W\d_])[\w \-./#()&]{1,40}")
_SENTENCE_END = re.compile(r"[.?!]\s*$")
# Letters, digits and the signs of ids, with a digit among them: q17, 0a1b-44, doc/7#2.
_ID_LIKE = re.compile(r"(?=.*\d)[A-Za-z0-9_.:/#@|~+-]{1,64}")
# Addresses, and paths of files.
_PATH_LIKE = re.compile(r"https?://\S+|[^\n]{1,200}\.(md|markdown|txt|rst|html?|pdf|docx?)", re.IGNORECASE)


def fold(name: str) -> str:
    """Return the form in which names of columns are compared.

    >>> fold(" Query-ID ") == fold("query_id"), fold("_id")
    (True, 'id')
    """
    return _SEPARATORS.sub("", name.casefold()).strip("\"'\ufeff")


@lru_cache(maxsize=4096)
def matching(keys: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of a row's keys that have one of the names, in the order of the names; an exact match comes first.

    >>> matching(("Title", "DOC ID", "body"), ("_id", "doc_id", "title"))
    ('DOC ID', 'Title')
    """
    exact, folded = set(keys), dict[str, str]()
    for key in keys:
        folded.setdefault(fold(key), key)
    found = (name if name in exact else folded.get(fold(name)) for name in names)
    return tuple(dict.fromkeys(key for key in found if key is not None))


def is_negative(name: str) -> bool:
    """Return whether a column has the name of negatives: negative, neg, hard_negative_1, neg2 ..

    >>> is_negative("Hard-Negative 3"), is_negative("negation")
    (True, False)
    """
    return bool(_NEGATIVE.fullmatch(fold(name)))


_KNOWN = {
    fold(n)
    for n in (
        *ID_NAMES,
        *TITLE_NAMES,
        *TEXT_NAMES,
        *QUERY_IDS,
        *QUERY_NAMES,
        *ANCHORS,
        *POSITIVES,
        *SCORE_NAMES,
        *_OTHER,
    )
}


def is_negligible(name: str) -> bool:
    """Return whether a column has facts beside a text, such as its url, that nobody expects to be read."""
    return fold(name) in _NEGLIGIBLE


def is_known_name(name: str) -> bool:
    """Return whether headers use this name, alone or with a number behind it (`text1`)."""
    folded = fold(name)
    return folded in _KNOWN or folded.rstrip("0123456789") in _KNOWN or is_negative(name)


class Columns(Protocol):
    """The columns of a table, whose first line may be a header; given: those that settings name."""

    @property
    def given(self) -> GivenColumns:
        """The columns that settings name."""

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether the cells of the first line are names of columns."""

    def default_names(self, width: int) -> Sequence[str]:
        """Return the names of the columns of a table without a header; none if such a table needs one."""


def header_of(cells: Sequence[str], sample: Sequence[Sequence[str]], columns: Columns, *, quoted: bool) -> bool:
    """Return whether a table's first line is a header: it has names of the columns, or looks as names do.

    sample: the cells of some lines below. quoted: the table is a .csv file, which seldom lacks a header.
    """
    if columns.is_header(cells):
        return True
    below = [row for row in sample if len(row) == len(cells)]
    if _is_data(cells, below):
        return False
    known = sum(map(is_known_name, cells))
    if not below:
        return known > 1 or known == len(cells)
    return quoted or known > 0 or any(_differs(cell, [row[i] for row in below]) for i, cell in enumerate(cells))


def _is_data(cells: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether a first line cannot be a header: a cell is not a name, or is found below, in its form at least."""
    if not all(map(_is_name, cells)) or len({fold(cell) for cell in cells}) < len(cells):
        return True
    if any(cell == row[i] for i, cell in enumerate(cells) for row in below):
        return True
    shapes = ((_shape(cell), [_shape(row[i]) for row in below]) for i, cell in enumerate(cells))
    return any("0" in shape and others.count(shape) * 2 > len(others) for shape, others in shapes if others)


def may_be_name(cell: str) -> bool:
    """Return whether a cell may be the name of a column: it is neither a number nor an address."""
    return not _NUMBER.fullmatch(cell.strip()) and "://" not in cell


def _is_name(cell: str) -> bool:
    return bool(_NAME.fullmatch(cell.strip())) and len(cell.split()) <= 4 and not _SENTENCE_END.search(cell)


def _shape(cell: str) -> str:
    return re.sub(r"\d+", "0", cell.strip())


def _differs(cell: str, below: Sequence[str]) -> bool:
    """Return whether a name is unlike the values below it: they are numbers, ids, or much longer texts."""
    if not below:
        return False
    if all(_NUMBER.fullmatch(value.strip()) for value in below):
        return True
    if all(_ID_LIKE.fullmatch(value.strip()) for value in below) and not _ID_LIKE.fullmatch(cell.strip()):
        return True
    words = median(len(value.split()) for value in below)
    return words >= 3 * len(cell.split()) or median(map(len, below)) >= max(30, 3 * len(cell))


@frozen
class NamedColumns:
    """Columns by their usual names: a header has one of each group. Without a header, the columns are `defaults`."""

    groups: Sequence[Sequence[str]]
    defaults: Sequence[str] = ()

    @property
    def given(self) -> GivenColumns:
        """No columns: settings do not name these."""
        return GivenColumns()

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether the cells have one name of each group."""
        return all(matching(tuple(cells), tuple(names)) for names in self.groups)

    def default_names(self, _width: int) -> Sequence[str]:
        """Return the usual names; they are the same for any number of columns."""
        return self.defaults


@frozen
class GivenColumns:
    """Columns that settings name, by role: a name, or the number of a column (from 1) in a table without a header.

    Raises DrkitError for names and numbers at once.
    """

    by_role: Mapping[str, tuple[str, ...]] = field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_role)

    @classmethod
    def of(cls, columns: Mapping[str, Any], roles: Mapping[str, Sequence[str] | str] | None = None) -> GivenColumns:
        """Return the columns of the setting `columns`, and of settings of their own, by role (empty: not given)."""
        found: dict[str, tuple[str, ...]] = {}
        for role, given in chain((roles or {}).items(), columns.items()):
            names = tuple(map(str, given)) if isinstance(given, (list, tuple)) else (str(given),) if given else ()
            if names and found.setdefault(role, names) != names:
                raise DrkitError(
                    f"collection: two columns are named for the {role}: {', '.join(found[role])} and "
                    f"{', '.join(names)}; name one"
                )
        return cls(found)

    def only(self, *roles: str) -> GivenColumns:
        """Return the columns of some roles."""
        return GivenColumns({role: names for role, names in self.by_role.items() if role in roles})

    @property
    def are_numbers(self) -> bool:
        """Whether the columns are named by numbers."""
        return any(name.isdecimal() for names in self.by_role.values() for name in names)

    def names(self, role: str, usual: Sequence[str]) -> tuple[str, ...]:
        """Return the name that is given for a role, or the usual ones."""
        return self.by_role.get(role) or tuple(usual)

    def has(self, *roles: str) -> bool:
        """Return whether a column is given for each of the roles."""
        return all(role in self.by_role for role in roles)

    def are_in(self, cells: Sequence[str]) -> bool:
        """Return whether a first line has all the given columns, by names or numbers.

        >>> GivenColumns({"text": ("Antwort",), "id": ("3",)}).are_in(["Frage", "antwort"])
        False
        """
        keys = tuple(cells)
        return all(
            any(int(name) <= len(keys) if name.isdecimal() else matching(keys, (name,)) for name in names)
            for names in self.by_role.values()
            if names != (_NONE,)
        )

    def is_header(self, cells: Sequence[str]) -> bool | None:
        """Return whether the first line is a header, as the given columns say; None if none are given.

        Raises DrkitError for a number beyond the last column.
        """
        if not self.by_role:
            return None
        if not self.are_numbers:
            return True
        given = [name for names in self.by_role.values() for name in names]
        if not all(map(str.isdecimal, given)):
            raise DrkitError(
                f"collection.columns has names and numbers ({', '.join(given)}); give names of a header, or numbers "
                f"for a table without one"
            )
        largest = max(map(int, given))
        if not 1 <= largest <= len(cells):
            raise DrkitError(f"collection.columns names the column {largest}, but there are {len(cells)}")
        return False

    def default_names(self, width: int) -> Sequence[str] | None:
        """Return the numbers of the columns if settings name them by numbers, else None."""
        return [str(number) for number in range(1, width + 1)] if self.are_numbers else None


def columns_advice(*roles: str) -> str:
    """Return what to type to name the columns of some roles."""
    named = ",".join(f"{role}=COLUMN" for role in roles)
    return f"--columns {named} (a name, or a number without a header)"


def looks_like_ids(values: Iterable[str]) -> bool:
    """Return whether all of some values look like ids or numbers, not like texts.

    A few values of letters and digits may be texts, so that there must be three; numbers, addresses and paths of files
    are never texts.

    >>> looks_like_ids(["17", "4"]), looks_like_ids(["q1", "q2", "q3"]), looks_like_ids(["mp3", "why not"])
    (True, True, False)
    """
    found = [value.strip() for value in values]
    if not found:
        return False
    if any(all(pattern.fullmatch(value) for value in found) for pattern in (_NUMBER, _PATH_LIKE)):
        return True
    return len(found) >= 3 and len({*found}) > len(found) / 2 and all(_ID_LIKE.fullmatch(value) for value in found)


def checked(rows: Iterable[Item], check: Callable[[Sequence[Item]], None]) -> Iterator[Item]:
    """Yield all rows, once `check` has seen the first ones; it raises DrkitError."""
    left = iter(rows)
    first = list(islice(left, SAMPLED_ROWS))
    check(first)
    yield from chain(first, left)
