"""What the formats of collections share: splits, rows that know where they were read, and readers of their files.

Passages, topics and judgements are read under the file and column names that are in common use. Every reader yields
(where, item) pairs; `where` prints as `file:line`.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.types import HIGHEST_GRADE, Judgement, Passage, Query
from drkit.data.ranges import file_ranges
from drkit.data.rows import FORMATS, FileRange, Row, file_kind, parse_number, read_lines, read_rows
from drkit.errors import DrkitError

SPLITS = ("train", "dev", "test")


def fraction(name: str) -> float:
    """Return a number in [0, 1) that depends on `name` alone.

    >>> fraction("json.decoder") == fraction("json.decoder"), 0 <= fraction("json") < 1
    (True, True)
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def split_by_hash(name: str, *, dev_share: float, test_share: float) -> str:
    """Return `test`, `dev` or `train` for a name, so that test and dev get these shares of all names."""
    value = fraction(name)
    if value < test_share:
        return "test"
    return "dev" if value < test_share + dev_share else "train"


@frozen
class Splits:
    """Which splits a collection has, and which queries belong to each; decided by the hash of a query's id.

    collection: its name, for errors. own: splits with queries of their own. held_out: splits that are a share of the
    training queries. train_share: of the test queries, in a collection without training queries; a tenth of these are
    dev if it has no dev queries either.
    """

    collection: str
    own: frozenset[str]
    held_out: Mapping[str, float]
    train_share: float = 0.0

    @classmethod
    def of(
        cls,
        collection: str,
        own: Iterable[str],
        *,
        dev_share: float = 0.0,
        test_share: float = 0.0,
        train_share: float = 0.0,
    ) -> Splits:
        """Return splits by a collection's shares; a share is ignored if the split has queries of its own."""
        own = frozenset(own)
        shares = {"dev": dev_share, "test": test_share} if "train" in own else {}
        held_out = {split: share for split, share in shares.items() if share and split not in own}
        return cls(collection, own, held_out, train_share if "test" in own and "train" not in own else 0.0)

    def names(self) -> tuple[str, ...]:
        """Return the splits: of train, dev, test, in this order."""
        taken = {*self.own, *self.held_out, *(("train", "dev") if self.train_share else ())}
        return tuple(split for split in SPLITS if split in taken)

    def source(self, split: str) -> str:
        """Return the split whose queries `split` is taken from. Raises DrkitError for an unknown split."""
        if split not in self.names():
            raise DrkitError(f"{self.collection} has no split {split!r}; it has {', '.join(self.names()) or 'none'}")
        if split in self.own:
            return split
        return "test" if self.train_share else "train"

    def membership(self, split: str) -> Callable[[str], bool]:
        """Return the function that says whether a query id of `source(split)` belongs to `split`."""
        source = self.source(split)
        if source == "test" and self.train_share:
            return lambda query_id: self._taken_from_test(query_id) == split
        if source == "train" and self.held_out:
            dev, test = (self.held_out.get(name, 0.0) for name in ("dev", "test"))
            return lambda query_id: split_by_hash(query_id, dev_share=dev, test_share=test) == split
        return lambda _: True

    def _taken_from_test(self, query_id: str) -> str:
        value = fraction(query_id)
        if value >= self.train_share:
            return "test"
        return "dev" if "dev" not in self.own and value < self.train_share / 10 else "train"


class FileCollection(ABC):
    """A collection read from files as (where, item) pairs; `where` prints as `file:line`.

    The readers of file formats subclass it because they differ in where rows come from and in nothing else. Each sets
    `name` and gives its splits and the four `located_` streams. `passage_file` is the file of all passages, if there is
    one, of which `located_passages` reads a range.
    """

    name: str
    passage_file: Path | None = None

    @property
    @abstractmethod
    def split_rules(self) -> Splits:
        """The splits."""

    @abstractmethod
    def located_passages(self, part: FileRange | None = None) -> Iterator[tuple[object, Passage]]:
        """Yield every passage, or those of a range of `passage_file`."""

    @abstractmethod
    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the queries of a split."""

    @abstractmethod
    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """Yield the judgements of a split."""

    def located_negatives(self, _split: str) -> Iterator[tuple[object, tuple[str, str]]]:
        """Yield (query id, passage id) of the negatives of a split; most formats have none."""
        return iter(())

    @abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Return facts for the manifest: what was read, with its size and SHA-256."""

    def splits(self) -> tuple[str, ...]:
        """Return the splits with queries, those taken from another split included."""
        return self.split_rules.names()

    def passages(self) -> Iterator[Passage]:
        """Stream every passage."""
        return (passage for _, passage in self.located_passages())

    def passage_parts(self) -> Iterator[FileRange]:
        """Yield ranges of the passages that can be read separately, in order; nothing if the file cannot be cut."""
        return file_ranges(self.passage_file) if self.passage_file else iter(())

    def passages_in(self, part: FileRange) -> Iterator[Passage]:
        """Stream the passages of a range."""
        return (passage for _, passage in self.located_passages(part))

    def queries(self, split: str) -> Iterator[Query]:
        """Stream the queries of a split, in the order of the files."""
        return (query for _, query in self.located_queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Stream the judgements of a split, in the order of the files."""
        return (judgement for _, judgement in self.located_judgements(split))

    def locate(self, table: str, split: str, row: int) -> str:
        """Return where row `row` of a table was read, as `file:line`; the table is read again."""
        if table == "passages":
            rows: Iterator[tuple[object, object]] = self.located_passages()
        elif table == "queries":
            rows = self.located_queries(split)
        else:
            rows = self.located_judgements(split) if table == "judgements" else self.located_negatives(split)
        return next((str(where) for where, _ in islice(rows, row, None)), "")


def judged_queries(
    queries: Iterable[tuple[object, Query]], judgements: Iterable[Judgement]
) -> Iterator[tuple[object, Query]]:
    """Yield the queries that have a judgement; the ids of these are held in memory."""
    judged = {judgement.query_id for judgement in judgements}
    return ((where, query) for where, query in queries if query.query_id in judged)


SPLIT_NAMES = {"train": ("train", "training"), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
CORPUS_NAMES = ("corpus", "collection", "docs", "documents", "passages")
ID_COLUMNS = ("_id", "id", "docid", "doc_id", "docno", "pid")
TEXT_COLUMNS = ("text", "contents", "passage", "body")
TITLE_COLUMNS = ("title",)
QUERY_ID_COLUMNS = ("_id", "id", "query_id", "query-id", "qid")
QUERY_COLUMNS = ("text", "query", "question", "title")
QRELS_FORMATS = (".tsv", ".txt", ".qrels", ".qrel", ".trec")
TOPIC_FORMATS = (*FORMATS, ".txt", ".topics", ".trec", ".xml")

_ALL_SPLITS = frozenset(name for names in SPLIT_NAMES.values() for name in names)
_SEPARATORS = re.compile(r"[./_-]+")
_BEIR_JUDGEMENT = "'query-id<TAB>corpus-id<TAB>score'"
_JUDGEMENT = "'query 0 passage relevance' (TREC) or 'query passage relevance', separated by tabs or spaces"
_START = re.compile(r"<top>", re.IGNORECASE)
_TAG = re.compile(r"<(num|title|desc|narr)>", re.IGNORECASE)
_ANY_TAG = re.compile(r"<[^<>]*>")
_LABEL = re.compile(r"^\s*(number|topic|description|narrative)\s*:\s*", re.IGNORECASE)


def words_of(name: str) -> set[str]:
    """Return the words of a path, lower-cased: what dots, dashes, underscores and slashes separate.

    >>> sorted(words_of("qrels/Dev.tsv"))
    ['dev', 'qrels', 'tsv']
    """
    return set(_SEPARATORS.split(name.lower()))


def find_file(
    folder: Path, names: Sequence[str], split: str = "", *, formats: Collection[str] = FORMATS
) -> Path | None:
    """Find the file in a folder, or one level below, with one of `names` and the split among the words of its path.

    Examples: `queries.dev.tsv`, `qrels/dev.tsv`, `nq-dev.jsonl.gz`. Without a split, the file must name none. Among
    several files the one with the fewest words wins (`queries.dev.tsv` before `queries.dev.small.tsv`).

    Raises DrkitError if two have equally few words.
    """
    found: list[tuple[int, Path]] = []
    for path in sorted(p for p in (*folder.glob("*"), *folder.glob("*/*")) if p.is_file()):
        words = words_of(str(path.relative_to(folder)))
        of_split = bool(words & set(SPLIT_NAMES[split])) if split else not words & _ALL_SPLITS
        if words & set(names) and of_split and file_kind(path) in formats and not path.name.startswith("."):
            found.append((len(words - {"gz"}), path))
    found.sort()
    if len(found) > 1 and found[0][0] == found[1][0]:
        role = f"{names[0]} file{f' of {split}' if split else ''}"
        raise DrkitError(
            f"{folder}: both {found[0][1].name} and {found[1][1].name} may be the {role}; choose one by a setting"
        )
    return found[0][1] if found else None


@frozen
class PassageColumns:
    """Column names of id, text and title, in order of preference. A row without an id is named by its number."""

    ids: Sequence[str] = ID_COLUMNS
    texts: Sequence[str] = TEXT_COLUMNS
    titles: Sequence[str] = TITLE_COLUMNS

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether a table's first line names text and id; the text's name alone could be a value."""
        has_text, has_id = (any(name in cells for name in names) for names in (self.texts, self.ids))
        return has_text and (has_id or len(cells) == 1 or len(self.texts) == 1)

    def default_names(self, width: int) -> Sequence[str]:
        """Return names for a table without a header: text; id, text; or id, text, title."""
        return self.texts[:1] if width == 1 else (self.ids[0], self.texts[0], self.titles[0])[:width]

    def read(self, row: Row) -> Passage:
        """Return the passage in a row. Raises DrkitError if it has neither text nor title, or its id is empty."""
        titles = [name for name in self.titles if row.values.get(name) is not None]
        title = row.text(titles[0]) if titles else ""
        texts = [name for name in self.texts if row.values.get(name) is not None]
        text = row.text(texts[0]) if texts else "" if title else row.text(row.first(self.texts))
        ids = [name for name in self.ids if name in row.values]
        return Passage(row.id(ids[0]) if ids else str(row.number), text, title)


def read_passages(
    path: Path, columns: PassageColumns | None = None, part: FileRange | None = None
) -> Iterator[tuple[Row, Passage]]:
    """Stream the passages of a file, or of a range of it.

    Tables have a header with the names of id and text, or the columns text; id, text; or id, text, title. Raises
    DrkitError naming `file:line` at a row without a text or title.
    """
    columns = columns or PassageColumns()
    return ((row, columns.read(row)) for row in read_rows(path, columns.is_header, columns.default_names, part))


def query_of(row: Row, *, ids: Sequence[str] = QUERY_ID_COLUMNS, texts: Sequence[str] = QUERY_COLUMNS) -> Query:
    """Return the query in a row. Raises DrkitError if its id or text is missing or empty."""
    return require_text(Query(row.id(row.first(ids)), row.text(row.first(texts))), row)


def require_text(query: Query, where: object) -> Query:
    """Return the query. Raises DrkitError if its text is empty."""
    if not query.text.strip():
        raise DrkitError(f"{where}: the query {query.query_id!r} is empty; give it a text or delete it")
    return query


def read_topics(path: Path, part: str = "title") -> Iterator[tuple[Row, Query]]:
    """Stream the queries of a file: TREC's `<top>` (its `part` is the query), JSON Lines, or a table of id and text.

    Raises DrkitError naming `file:line` at a topic without a number or without that part.
    """
    if file_kind(path) in FORMATS:
        rows = read_rows(path, lambda cells: bool({*QUERY_ID_COLUMNS} & {*cells}), lambda width: ("id", "text")[:width])
        return ((row, query_of(row)) for row in rows)
    first = next((line for _, line in read_lines(path) if line.strip()), "")
    if first.lstrip().startswith("<") or _START.search(first):
        return _read_trec_topics(path, part)
    raise DrkitError(
        f"{path}:1: expected TREC topics (<top>); a file of topics in another format must end in .tsv, .csv or .jsonl"
    )


def _read_trec_topics(path: Path, part: str) -> Iterator[tuple[Row, Query]]:
    topic: Row | None = None
    tag = ""
    for number, line in read_lines(path):
        if _START.search(line):
            if topic is not None:
                raise DrkitError(
                    f"{path}:{number}: <top> inside the topic of line {topic.number}; close that one with </top>"
                )
            topic, tag = Row(path, number, {}), ""
        if topic is None:
            continue
        for piece_tag, text in _pieces(line):
            tag = piece_tag or tag
            if tag:
                topic.values[tag] = f"{topic.values.get(tag, '')} {text}".strip()
        if "</top>" in line.lower():
            yield topic, _topic_query(topic, part)
            topic = None
    if topic is not None:
        raise DrkitError(f"{topic}: this <top> is never closed; the file may be truncated")


def _pieces(line: str) -> Iterator[tuple[str, str]]:
    """Yield (tag, text) pieces of a line; the tag is empty if the text continues the previous one."""
    parts: list[Any] = _TAG.split(line)
    for tag, text in zip(["", *parts[1::2]], parts[::2], strict=True):
        yield tag.lower(), _ANY_TAG.sub(" ", text).strip()


def _topic_query(topic: Row, part: str) -> Query:
    values = {name: " ".join(_LABEL.sub("", text).split()) for name, text in topic.values.items()}
    if not values.get("num"):
        raise DrkitError(f"{topic}: this topic has no <num>")
    if part not in values:
        raise DrkitError(f"{topic}: the topic {values['num']!r} has no <{part}>; it has {', '.join(values)}")
    return require_text(Query(values["num"], values[part]), topic)


def read_judgements(path: Path, *, beir: bool = False) -> Iterator[tuple[str, Judgement]]:
    """Stream (`file:line`, judgement) of a qrels file.

    Four columns as TREC has them, or three, with or without a header; `beir`: three, tab-separated, with a header.
    A line with tabs is split at tabs, so that ids may contain spaces; others at white space. Relevance is an integer,
    possibly negative. Raises DrkitError naming `file:line` at any other line.
    """
    return judgements_of(read_lines(path), path, beir=beir)


def judgements_of(
    lines: Iterable[tuple[int, str]], path: Path, *, beir: bool = False
) -> Iterator[tuple[str, Judgement]]:
    """Stream `read_judgements` of numbered lines; path: the file that they are from, for errors."""
    for number, line in lines:
        where = f"{path}:{number}"
        cells = line.split("\t") if beir else qrels_columns(line)
        if len(cells) not in ((3,) if beir else (3, 4)) or not cells[0] or not cells[-2]:
            raise DrkitError(f"{where}: expected {_BEIR_JUDGEMENT if beir else _JUDGEMENT}, got {line!r:.200}")
        numbers = cells[2:] if len(cells) == 3 else cells[1::2]
        if number > 1 or any(map(_is_number, numbers)):  # else the line is a header
            if number == 1 and beir:
                raise DrkitError(f"{where}: expected the header {_BEIR_JUDGEMENT}, got a judgement")
            yield where, Judgement(cells[0], cells[-2], parse_relevance(cells[-1], where))


def qrels_columns(line: str) -> list[str]:
    r"""Return the columns of a line of judgements, which are separated by tabs if it has any.

    >>> qrels_columns("q1\tdoc one\t1")
    ['q1', 'doc one', '1']
    """
    return line.split("\t") if "\t" in line else line.split()


def _is_number(text: str) -> bool:
    try:
        parse_number(text)
    except ValueError:
        return False
    return True


def parse_relevance(text: str, where: str) -> int:
    """Return a relevance written as `1` or `1.0`. Raises DrkitError if it is not an integer, or too large."""
    try:
        value = parse_number(text)
        whole = value == int(value) and -(2**31) <= value <= HIGHEST_GRADE
    except (ValueError, OverflowError):
        whole = False
    if not whole:
        raise DrkitError(f"{where}: the score {text!r:.80} is not a 32-bit integer of at most {HIGHEST_GRADE:,}")
    return int(value)
