"""What the formats of collections share: splits, rows that know where they were read, and readers of their files.

Files and columns have the names in common use. Every reader yields (where, item) pairs; `where` prints as `file:line`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from drkit.core.files import local_path
from drkit.core.protocols import KeepsSettings, UnknownJudgements
from drkit.core.types import CollectionSize, Judgement, Passage, Query
from drkit.data.column_advice import pair_advice
from drkit.data.columns import (
    ASKED,
    ID_COLUMN,
    ID_NAMES,
    TEXT_COLUMN,
    TEXT_NAMES,
    TITLE,
    TITLE_NAMES,
    GivenColumns,
    checked,
    columns_advice,
    is_known_name,
    is_negligible,
    looks_like_ids,
    matching,
    may_be_name,
)
from drkit.data.rows import (
    COMPRESSED,
    FORMATS,
    FileRow,
    file_kind,
    missing_column,
    read_rows,
    require_file,
    separator_note,
)
from drkit.data.splits import Splits
from drkit.data.words import estimate_tokens
from drkit.errors import DrkitError

# Passages, and queries of a split, that are read to estimate the size of a collection.
_SAMPLE = 5000
# Bytes of a row without its text and id, and how many times smaller a compressed file is.
_ROW_BYTES, _COMPRESSION = 30, 3


def drops_unknown_ids(collection: object) -> bool:
    """Return whether judgements and negatives with unknown ids are left out, by the settings of a collection."""
    settings = collection.config if isinstance(collection, KeepsSettings) else None
    return isinstance(settings, UnknownJudgements) and settings.unknown_judgements == "drop"


class FileCollection(ABC):
    """A collection read from files as (where, item) pairs; `where` prints as `file:line`.

    The readers of file formats subclass it because they differ in where rows come from and in nothing else. Each sets
    `name` and gives `located_passages`; those with queries give their splits and the other `located_` streams, too.
    `passage_files` hold all passages; empty if passages are read from elsewhere.
    """

    name: str
    passage_files: tuple[Path, ...] = ()

    @property
    def split_rules(self) -> Splits:
        """The splits; none of texts alone."""
        return Splits.of(self.name, ())

    @abstractmethod
    def located_passages(self) -> Iterator[tuple[object, Passage]]:
        """Yield every passage with the place it was read from, for messages."""

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the queries of a split. Raises DrkitError for texts alone."""
        raise DrkitError(f"{self.name} has only texts, no {split!r} queries")

    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """Yield the judgements of a split. Raises DrkitError for texts alone."""
        raise DrkitError(f"{self.name} has only texts, no {split!r} judgements")

    def located_negatives(self, _split: str) -> Iterator[tuple[object, tuple[str, str]]]:
        """Yield (query id, passage id) of the negatives of a split; most formats have none."""
        return iter(())

    def files(self) -> Iterable[Path]:
        """Return every file that is read."""
        return self.passage_files

    def notes(self) -> Iterator[str]:
        """Yield how the files are read, where their names and headers leave it open."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return facts for the manifest: the bytes of each file, and the shares taken from other splits."""
        return {
            "collection": self.name.partition(":")[0],
            "files": {str(path.resolve()): path.stat().st_size for path in dict.fromkeys(self.files())},
            "train_share": self.split_rules.train_share,
            "shares": dict(self.split_rules.held_out),
        }

    def splits(self) -> tuple[str, ...]:
        """Return the splits with queries, those taken from another split included."""
        return self.split_rules.names()

    def passages(self) -> Iterator[Passage]:
        """Stream every passage."""
        return (passage for _, passage in self.located_passages())

    def size(self) -> CollectionSize | None:
        """Estimate the size from the first texts and the bytes of the files; None if no file has only passages."""
        first = list(islice(self.passages(), _SAMPLE + 1))
        count = float(len(first))
        if len(first) > _SAMPLE:
            if not self.passage_files:
                return None
            row = sum(len(one.content.encode()) + len(one.doc_id) + _ROW_BYTES for one in first) / len(first)
            count = sum(map(_unpacked_bytes, self.passage_files)) / row
        queries = {split: [estimate_tokens(query.text) for query in self.queries(split)] for split in self.splits()}
        return CollectionSize(
            passages=round(count),
            queries={split: len(lengths) for split, lengths in queries.items()},
            passage_lengths=[estimate_tokens(one.content) for one in first],
            query_lengths=list(islice(chain.from_iterable(queries.values()), _SAMPLE)),
            id_length=sum(len(one.doc_id) for one in first) / max(len(first), 1),
        )

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


def _unpacked_bytes(path: Path) -> float:
    is_packed = path.suffix in (*COMPRESSED, ".parquet")
    return path.stat().st_size * (_COMPRESSION if is_packed else 1)


def judged_queries(
    queries: Iterable[tuple[object, Query]], judgements: Iterable[Judgement]
) -> Iterator[tuple[object, Query]]:
    """Yield the queries that have a judgement; the ids of these are held in memory."""
    judged = {judgement.query_id for judgement in judgements}
    return ((where, query) for where, query in queries if query.query_id in judged)


SPLIT_NAMES = {"train": ("train", "training"), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
CORPUS_NAMES = ("corpus", "collection", "docs", "documents", "passages")
QRELS_FORMATS = (".tsv", ".txt", ".qrels", ".qrel", ".trec")

_ALL_SPLITS = frozenset(name for names in SPLIT_NAMES.values() for name in names)
_OTHER_FILES = {"queries", "query", "topics", "qrels", "qrel"}
_SEPARATORS = re.compile(r"[./_-]+")


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
            found.append((len(words - {suffix[1:] for suffix in COMPRESSED}), path))
    found.sort()
    if len(found) > 1 and found[0][0] == found[1][0]:
        role = f"{names[0]} file{f' of {split}' if split else ''}"
        raise DrkitError(
            f"both {found[0][1].name} and {found[1][1].name} may be the {role}; choose one by a setting", where=folder
        )
    return found[0][1] if found else None


# Tables of passages without a header, by their number of columns.
_LAYOUTS = {
    1: (TEXT_COLUMN,),
    2: ("_id", TEXT_COLUMN),
    3: ("_id", TEXT_COLUMN, TITLE),
    4: ("_id", "url", TITLE, TEXT_COLUMN),
}
# Names that need no word on how they are read.
_PLAIN = frozenset(("_id", "id", "docid", "doc_id", "docno", "pid", "title", "text", "contents", "passage", "body"))
_LAYOUT_NAMES = {1: "a text a line", 2: "MS MARCO's passages", 3: "id, text, title", 4: "MS MARCO's documents"}


@frozen
class PassageColumns:
    """The columns of id, text and title: those that settings name, or those with the usual names, in their order.

    A row without an id is named by its number, and by its file, too, if it is one of several.
    """

    given: GivenColumns = field(factory=GivenColumns)
    of_several_files: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        """Names of the id's column."""
        return self.given.names(ID_COLUMN, ID_NAMES)

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the text's column."""
        return self.given.names(TEXT_COLUMN, TEXT_NAMES)

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the title's column."""
        return self.given.names(TITLE, () if self.given.are_numbers else TITLE_NAMES)

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether a table's first line names the text and another column; a text alone could be a value."""
        given = self.given.is_header(cells)
        has_text = bool(matching(tuple(cells), self.texts)) and all(map(may_be_name, cells))
        return (has_text and (len(cells) == 1 or sum(map(is_known_name, cells)) > 1)) if given is None else given

    def default_names(self, width: int) -> Sequence[str]:
        """Return names for a table without a header: text; id, text; id, text, title; or id, url, title, text."""
        numbers = self.given.default_names(width)
        return _LAYOUTS.get(width, _LAYOUTS[3]) if numbers is None else numbers

    def read(self, row: FileRow) -> Passage:
        """Return the passage in a row. Raises DrkitError if it has neither text nor title, or its id is empty."""
        texts = [name for name in row.find(self.texts) if row.values[name] is not None]
        titles = [name for name in self._find(row, TITLE) if row.values[name] is not None]
        title = row.text(titles[0]) if titles else ""
        if not texts and not titles and not row.find(self.texts):
            raise missing_column(row, self.texts, TEXT_COLUMN, columns_advice(TEXT_COLUMN, ID_COLUMN))
        text = row.text(texts[0]) if texts else "" if titles else row.text(row.find(self.texts)[0])
        ids = self._find(row, ID_COLUMN)
        number = f"{Path(row.path).name}:{row.number}" if self.of_several_files else str(row.number)
        return Passage(
            row.id(ids[0] if ids else self.ids[0]) if ids or self.given.has(ID_COLUMN) else number, text, title
        )

    def _find(self, row: FileRow, role: str) -> tuple[str, ...]:
        """Return the columns of a role; one that settings give to another role is none of them."""
        names = {ID_COLUMN: self.ids, TITLE: self.titles, TEXT_COLUMN: self.texts}[role]
        if self.given.has(role):
            return row.find(names)
        taken = row.find([name for names in self.given.by_role.values() for name in names])
        return tuple(name for name in row.find(names) if name not in taken)

    def _unread(self, row: FileRow) -> list[str]:
        read = {name for role in (ID_COLUMN, TITLE, TEXT_COLUMN) for name in self._find(row, role)[:1]}
        return [name for name in row.values if name not in read and not is_negligible(name)]

    def check(self, rows: Sequence[FileRow]) -> None:
        """Raise DrkitError for first rows without a column of the text, or whose text looks like an id.

        Settings that name the column are believed.
        """
        if rows and not any(row.find(self.texts) for row in rows) and self._unread(rows[0]):
            raise missing_column(rows[0], self.texts, TEXT_COLUMN, columns_advice(TEXT_COLUMN, ID_COLUMN))
        if rows and not rows[0].is_headless and not self.given.has(TEXT_COLUMN):
            self._refuse_queries(rows)
        found = [name for row in rows[:1] for name in row.find(self.texts)[:1]]
        values = [row.values.get(name) for name in found for row in rows]
        texts = [value for value in values if isinstance(value, str) and value.strip()]
        if not self.given.has(TEXT_COLUMN) and texts and len(texts) == len(values) and looks_like_ids(texts):
            raise DrkitError(
                f"the column {found[0]!r} has ids or numbers ({texts[0]!r:.40}), not texts; columns: "
                f"{', '.join(rows[0].values)}. Name the column of the text: {columns_advice(TEXT_COLUMN, ID_COLUMN)}",
                where=rows[0],
            )
        if rows and rows[0].is_headless and not self.given and {TEXT_COLUMN, TITLE} <= rows[0].values.keys():
            self._check_order(rows)

    def _refuse_queries(self, rows: Sequence[FileRow]) -> None:
        """Raise DrkitError for a table with queries beside what may be texts, or the ids, paths or titles of texts."""
        row, texts = rows[0], rows[0].find(self.texts)
        if texts and (queries := [name for name in row.find(ASKED) if name in self._unread(row)]):
            values = [str(value) for row in rows if (value := row.values.get(texts[0])) not in (None, "")]
            are_ids = looks_like_ids(values)
            what = "ids, paths or numbers" if are_ids else "the texts that answer them, or titles of texts"
            raise DrkitError(
                f"the column {queries[0]!r} seems to have queries, and {texts[0]!r} {what}; columns: "
                f"{', '.join(row.values)}. {pair_advice(row.path, queries[0], texts[0], are_ids=are_ids)}",
                where=row,
            )

    def _check_order(self, rows: Sequence[FileRow]) -> None:
        """Raise DrkitError if a table without a header has longer titles than texts."""
        title, text = (sum(len(str(row.values.get(name) or "")) for row in rows) for name in (TITLE, TEXT_COLUMN))
        if title > 2 * text:
            names = [*rows[0].values]
            long, short = names.index(TITLE) + 1, names.index(TEXT_COLUMN) + 1
            raise DrkitError(
                f"the table has no header, and its column {long} is longer than the column {short}, where the text is "
                f"expected; write a header, or name the columns, as in --columns id=1,title={short},text={long}",
                where=rows[0],
            )

    def notes(self, row: FileRow) -> Iterator[str]:
        """Yield how the columns of a file are read, by its first row, where that is not plain from their names."""
        yield from separator_note(row)
        if row.is_headless:
            layout = f", the layout of {_LAYOUT_NAMES[len(row.values)]}" if not self.given.are_numbers else ""
            yield (
                f"{row.path} has no header: its columns are read as {', '.join(row.values)}{layout}; a header line or "
                f"{columns_advice(ID_COLUMN, TEXT_COLUMN)} says otherwise"
            )
            return
        used = {role: found[0] for role in (ID_COLUMN, TITLE, TEXT_COLUMN) if (found := self._find(row, role))}
        unread = self._unread(row)
        if unread or not {*used.values()} <= _PLAIN:
            roles = ", ".join(f"{name!r} is the {role}" for role, name in used.items())
            left = f"; columns that are not read: {', '.join(unread)}" if unread else ""
            yield f"{row.path}: {roles}{left}; {columns_advice(*used)} says otherwise"
        if ID_COLUMN not in used:
            yield f"{row.path} has no column of ids: a passage is named by its row; --columns id=COLUMN names one"


def read_passages(files: Sequence[Path], columns: PassageColumns | None = None) -> Iterator[tuple[FileRow, Passage]]:
    """Stream the passages of files.

    Tables have a header with the names of id and text, or the columns of `PassageColumns.default_names`. Raises
    DrkitError naming `file:line` at a row without a text or title, and for a file whose texts look like ids.
    """
    columns = evolve(columns or PassageColumns(), of_several_files=len(files) > 1)
    for path in files:
        for row in checked(read_rows(path, columns), columns.check):
            yield row, columns.read(row)


def passage_notes(files: Sequence[Path], columns: PassageColumns | None = None) -> Iterator[str]:
    """Yield how the first of some files of passages is read; the others are read alike."""
    columns = columns or PassageColumns()
    for path in files[:1]:
        for row in islice(read_rows(path, columns), 1):
            yield from columns.notes(row)


class _TitleColumns:
    """The columns of a table of titles: id and title, by a header or without one."""

    given = GivenColumns()

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether a line names both columns."""
        return len(cells) == 2 and bool(matching(tuple(cells), ID_NAMES)) and bool(matching(tuple(cells), TITLE_NAMES))

    def default_names(self, width: int) -> Sequence[str]:  # noqa: ARG002
        """Return the names of the columns of a table without a header."""
        return ("_id", TITLE)


def with_titles(passages: Iterable[tuple[FileRow, Passage]], path: Path) -> Iterator[tuple[FileRow, Passage]]:
    """Yield passages with the titles that a file has for their ids; a passage that it leaves out has none.

    Both are read once, side by side, so the titles must have the order of the passages. Raises DrkitError at a title
    that belongs to none of the passages that are left, and at a passage that has a title already.
    """
    rows = read_rows(path, _TitleColumns())
    given = next(rows, None)
    for where, passage in passages:
        if given is None or given.id(given.first(ID_NAMES)) != passage.doc_id:
            yield where, passage
            continue
        if passage.title:
            raise DrkitError(f"the passage {passage.doc_id!r} has a title, and {given} gives it another", where=where)
        yield where, evolve(passage, title=given.text(given.first(TITLE_NAMES), default=""))
        given = next(rows, None)
    if given is not None:
        raise DrkitError(
            f"the passage {given.id(given.first(ID_NAMES))!r} does not exist, or titles have another order than "
            f"passages; sort both files in the same way",
            where=given,
        )


# Formats of tables that settings name one by one.
TEXT_TABLES = (*FORMATS, ".txt")


def find_titled(folder: Path) -> tuple[tuple[Path, ...], Path | None]:
    """Find RocketQA's files of passages and of their titles in a folder, `para.txt` and `para.title.txt`."""
    corpus = find_file(folder, ("para",), formats=TEXT_TABLES)
    titles = find_file(folder, ("title", "titles"), formats=TEXT_TABLES)
    return ((corpus,), titles) if corpus and corpus != titles else ((), None)


def passage_files(text: str, subject: str, formats: Sequence[str] = FORMATS) -> tuple[Path, ...]:
    """Return the file of passages that a setting gives, or the files of the folder that it gives, by name.

    Raises DrkitError if the file is missing, its format is not supported, or the folder has queries or judgements too.
    """
    folder = local_path(text)
    if not folder.is_dir():
        return (require_file(text, subject, formats),)
    files = _data_files(folder)
    if not files:
        raise DrkitError(f"{subject}: {folder} has no files of passages ({', '.join(FORMATS)}, or with .gz, .zst)")
    others = [path.name for path in files if words_of(path.name) & _OTHER_FILES]
    if others:
        raise DrkitError(
            f"{subject}: {folder} has more than passages ({others[0]}); name one file, or read the folder as a whole "
            f"collection, as in beir:{folder} or trec:{folder}"
        )
    return files


def find_corpus(folder: Path) -> tuple[Path, ...]:
    """Find the files of passages in a folder: the files of its folder `corpus`, or the one that `find_file` finds."""
    for name in CORPUS_NAMES:
        files = _data_files(folder / name) if (folder / name).is_dir() else ()
        if len(files) > 1 and not any(words_of(path.name) & _OTHER_FILES for path in files):
            return files
    found = find_file(folder, CORPUS_NAMES)
    return (found,) if found else ()


def _data_files(folder: Path) -> tuple[Path, ...]:
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return tuple(sorted(path for path in files if file_kind(path) in FORMATS))
