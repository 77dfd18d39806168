"""Texts and labels as people have them: articles in folders and tables, and tables of (query, article).

A label names its article by id, path, title or text. Which of these a column of labels holds is found by looking all of
its values up in the articles: one way must resolve them, else the file is refused with the counts of every way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import evolve, field, frozen

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import FileCollection, PassageColumns, passage_files, passage_notes, read_passages
from drkit.data.columns import (
    ANCHORS,
    ARTICLE,
    ID_COLUMN,
    ID_NAMES,
    POSITIVES,
    QUERY_COLUMN,
    SCORE,
    TEXT_COLUMN,
    TEXT_NAMES,
    TITLE,
    TITLE_NAMES,
    GivenColumns,
    checked,
    columns_advice,
    is_negligible,
    looks_like_ids,
    matching,
)
from drkit.data.documents import ENDINGS, DocumentsCollection
from drkit.data.pairs import text_id
from drkit.data.rows import (
    FORMATS,
    FileRow,
    file_kind,
    missing_column,
    parse_number,
    read_rows,
    require_file,
    separator_note,
)
from drkit.data.specs import DocumentsConfig, LabelledConfig
from drkit.data.splits import Splits
from drkit.errors import DrkitError

# Ways in which a label may name its article, those tried first in front.
PATH = "path"
WAYS = (ID_COLUMN, PATH, TITLE, TEXT_COLUMN)
_PATHS = ("path", "file", "filename", "file_name", "filepath", "article_path", "doc_path")
_RELEVANCES = ("relevance", "score", "label", "rating", "grade", "rel")
_QUERIES = (*ANCHORS, "q", "search", "search_term", "user_query")
_ARTICLES = (
    *ID_NAMES,
    *_PATHS,
    *(n for n in POSITIVES if n not in TEXT_NAMES),
    *TITLE_NAMES,
    *TEXT_NAMES,
    "doc",
    "url",
    "link",
)
_SHOWN = 3
_SPACES = re.compile(r"\s+")


@frozen
class LabelColumns:
    """The columns of labels: query, article and relevance, by the names that settings give or by the usual ones."""

    given: GivenColumns = field(factory=GivenColumns)

    @property
    def advice(self) -> str:
        """What to type to name the columns."""
        return columns_advice(QUERY_COLUMN, ARTICLE)

    def is_header(self, cells: Sequence[str]) -> bool:
        """Return whether the cells of the first line name a query and an article."""
        given = self.given.is_header(cells)
        if given is not None:
            return given
        keys = tuple(cells)
        return bool(matching(keys, _QUERIES)) and len(matching(keys, (*_QUERIES, *_ARTICLES))) > 1

    def default_names(self, width: int) -> Sequence[str]:
        """Return the numbers of columns that settings name; a table without a header has no names else."""
        return self.given.default_names(width) or ()

    def query(self, row: FileRow) -> str:
        """Return the column of the query. Raises DrkitError, with the columns and what to type, without one."""
        names = self.given.names(QUERY_COLUMN, _QUERIES)
        if found := row.find(names):
            return found[0]
        raise missing_column(row, names, QUERY_COLUMN, self.advice)

    def relevance(self, row: FileRow) -> str:
        """Return the column of the relevance; empty without one."""
        given = self.given.names(SCORE, ())
        if given == ("none",):
            return ""
        others = {self.query(row), *self.given.names(ARTICLE, ())}
        return next((name for name in row.find(given or _RELEVANCES) if name not in others), "")

    def articles(self, row: FileRow) -> tuple[str, ...]:
        """Return the columns that may name the article. Raises DrkitError as `query` does."""
        names, others = self.given.names(ARTICLE, _ARTICLES), {self.query(row), self.relevance(row)}
        if found := tuple(name for name in row.find(names) if name not in others):
            return found
        raise missing_column(row, names, ARTICLE, self.advice)

    def check(self, rows: Sequence[FileRow]) -> None:
        """Raise DrkitError for first rows without these columns, or whose queries look like ids."""
        if not rows:
            return
        query, _ = self.query(rows[0]), self.articles(rows[0])
        values = [value for row in rows if isinstance(value := row.values.get(query), str)]
        if not self.given.has(QUERY_COLUMN) and looks_like_ids(values):
            raise DrkitError(
                f"the column {query!r} has ids or numbers ({values[0]!r:.40}), not queries; columns: "
                f"{', '.join(rows[0].values)}. Name the columns: {self.advice}",
                where=rows[0],
            )


@frozen
class Label:
    """A row of labels: its query, what each column says about the article, and the relevance."""

    row: FileRow
    query: str
    articles: Mapping[str, str]
    relevance: int


@frozen
class Reference:
    """How the labels of a file name their articles: by which column, and in which way."""

    column: str
    way: str


@frozen
class Articles:
    """The passages that labels name: for each way, the passages of every value that was asked for."""

    found: Mapping[str, dict[str, list[str]]]

    @classmethod
    def look_up(cls, wanted: Iterable[str], passages: Iterable[Passage]) -> Articles:
        """Read the passages once, and keep what is wanted; memory holds the values of labels and their passages."""
        keys = {way: {key for value in wanted for key in _keys(way, value)} for way in WAYS}
        found: dict[str, dict[str, list[str]]] = {way: {} for way in WAYS}
        for passage in passages:
            for way in WAYS:
                for name in dict.fromkeys(_names(way, passage)):
                    if name in keys[way]:
                        found[way].setdefault(name, []).append(passage.doc_id)
        return cls(found)

    def passages(self, way: str, value: str) -> list[str]:
        """Return the ids of the passages that a value names in this way.

        A path is that of the one document that has it, else of the one document whose path ends in it.
        """
        for key in _keys(way, value):
            if doc_ids := self.found[way].get(key):
                return _of_one_document(doc_ids, key) if way == PATH else doc_ids
        return []


def _of_one_document(doc_ids: Sequence[str], key: str) -> list[str]:
    """Return the passages of the document with this path, or of the only one; none if several have the name."""
    documents = {doc_id: PurePosixPath(_key(PATH, doc_id.rpartition("#")[0])) for doc_id in doc_ids}
    exact = [one for one, path in documents.items() if key in (str(path), str(path.with_suffix("")))]
    chosen = exact or list(documents)
    return chosen if len({documents[one] for one in chosen}) == 1 else []


def _names(way: str, passage: Passage) -> Iterator[str]:
    """Yield the values that name a passage in this way."""
    if way == ID_COLUMN:
        yield passage.doc_id
    elif way == PATH and (path := _document(passage)):
        yield from (key for one in (path, path.with_suffix("")) for key in _keys(PATH, str(one)))
    elif way == TITLE and passage.title.strip():
        yield _key(TITLE, passage.title)
        if _document(passage):  # the heading above all others
            yield _key(TITLE, passage.title.partition(" / ")[0])
    elif way == TEXT_COLUMN and passage.text.strip():
        yield from (_key(TEXT_COLUMN, passage.text), _key(TEXT_COLUMN, passage.content))


def _document(passage: Passage) -> PurePosixPath | None:
    """Return the path of the document that a passage is from; None for a row of a table."""
    name, mark, number = passage.doc_id.rpartition("#")
    path = PurePosixPath(name)
    return path if mark and number.isdecimal() and path.suffix.lower() in ENDINGS else None


def _keys(way: str, value: str) -> list[str]:
    """Return the forms in which a value may be found, the longest first: of a path, with fewer folders in front."""
    if way != PATH:
        return [_key(way, value)]
    parts = PurePosixPath(_key(PATH, value)).parts
    return ["/".join(parts[start:]) for start in range(len(parts))]


def _key(way: str, value: str) -> str:
    """Return the form in which values are compared: titles without case, titles and texts without line breaks."""
    if way == ID_COLUMN:
        return value
    if way == PATH:
        return str(PurePosixPath(value.strip().replace("\\", "/"))).removeprefix("./").removeprefix("/").casefold()
    text = _SPACES.sub(" ", value).strip()
    return text.casefold() if way == TITLE else text_id(text)


class LabelledCollection(FileCollection):
    """Articles in folders of .md and .txt and in tables, and labels: tables of a query and the article that answers it.

    The labels are the queries of `train`, of which dev and test may take shares. An article that is several passages
    is relevant with all of them. A query's id is the hash of its text, so that a query in several rows is one.

    Raises DrkitError if a path is missing or of an unsupported format, and, when labels are read, for a column that
    names no articles, and as its readers do.
    """

    config: LabelledConfig

    def __init__(self, config: LabelledConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection labelled: no texts given; name a folder or a file, as in `labelled:PATH`")
        self.name = f"labelled:{local_path(config.path).resolve().name}"
        self._given = GivenColumns.of(config.columns)
        self.label_files = tuple(require_file(path, "collection labelled: labels") for path in config.labels)
        self.folders, files = _sort_texts((config.path, *config.more_texts), config.words)
        given = {local_path(path) for path in (config.path, *config.more_texts)}
        self._beside = [path for path in files if path in self.label_files and path not in given]
        self.passage_files = tuple(path for path in files if path not in self._beside)
        self._columns = LabelColumns(self._given.only(QUERY_COLUMN, ARTICLE, SCORE))

    @cached_property
    def split_rules(self) -> Splits:
        """The labels are of train; dev and test may have shares of them."""
        own = ("train",) if self.label_files else ()
        shares = Splits.of(self.name, own, dev_share=self.config.dev_share, test_share=self.config.test_share)
        return shares.filled(lambda: (text_id(label.query) for label in self.labels if label.relevance > 0))

    def located_passages(self) -> Iterator[tuple[object, Passage]]:
        """Yield the passages of the folders, then those of the tables."""
        for folder in self.folders:
            before = f"{folder.folder.resolve().name}/" if len(self.folders) > 1 else ""
            for where, passage in folder.located_passages():
                yield where, evolve(passage, doc_id=before + passage.doc_id)
        yield from read_passages(self.passage_files, self._passage_columns)

    @property
    def _passage_columns(self) -> PassageColumns:
        return PassageColumns(self._given.only(ID_COLUMN, TITLE, TEXT_COLUMN))

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """All rows of labels. Raises DrkitError at a row without a query or an article, or with another relevance."""
        return tuple(chain.from_iterable(map(self._read_labels, self.label_files)))

    def _read_labels(self, path: Path) -> Iterator[Label]:
        columns = self._columns
        for row in checked(read_rows(path, columns), columns.check):
            relevance = columns.relevance(row)
            articles = {name: _cell(row, name) for name in columns.articles(row)}
            if not any(articles.values()):
                raise _empty(row, next(iter(articles)))
            if not (query := _cell(row, columns.query(row))):
                raise _empty(row, columns.query(row))
            yield Label(row, query, articles, _relevance(row, relevance) if relevance else 1)

    @cached_property
    def articles(self) -> Articles:
        """The passages that the labels may mean; all passages are read once."""
        return Articles.look_up({value for label in self.labels for value in label.articles.values()}, self.passages())

    @cached_property
    def references(self) -> Mapping[Path, Reference]:
        """How the labels of each file name their articles."""
        by_file = {path: [one for one in self.labels if one.row.path == path] for path in self.label_files}
        return {path: self._reference(path, labels) for path, labels in by_file.items() if labels}

    def _reference(self, path: Path, labels: Sequence[Label]) -> Reference:
        """Return the column and way that resolve most labels of a file. Raises DrkitError if that is not clear.

        Those that mean the same passages are equally good. A few labels may name unknown articles, which are refused
        by line when they are read, as in any collection.
        """
        ways = (self.config.refers_to,) if self.config.refers_to else WAYS
        resolved = {
            Reference(column, way): [tuple(self.articles.passages(way, one.articles.get(column, ""))) for one in labels]
            for column in labels[0].articles
            for way in ways
        }
        counts = {reference: sum(map(bool, found)) for reference, found in resolved.items()}
        best = max(counts.values())
        first, *others = (reference for reference, count in counts.items() if count == best)
        if best * 2 <= len(labels):
            raise self._unclear(path, labels, counts, "no column names the articles of the texts")
        if other := next((one for one in others if resolved[one] != resolved[first]), None):
            names = [f"{one.column!r} as {one.way}" for one in (first, other)]
            raise self._unclear(path, labels, counts, f"{' or '.join(names)} may be meant, which are other articles")
        return first

    def _unclear(
        self, path: Path, labels: Sequence[Label], counts: Mapping[Reference, int], problem: str
    ) -> DrkitError:
        row, columns = labels[0].row, labels[0].articles
        tried = "; ".join(
            f"{column!r} (such as {value!r:.60}): "
            + ", ".join(f"{one.way} {count:,}" for one, count in counts.items() if one.column == column)
            for column, value in columns.items()
        )
        ids = [passage.doc_id for passage in islice(self.passages(), _SHOWN)]
        if not ids:
            texts = ", ".join((self.config.path, *self.config.more_texts))
            return DrkitError(f"collection labelled: {texts} has no text, so no label names one; give files with texts")
        return DrkitError(
            f"{problem}. Of {len(labels):,} labels, so many are found by {tried}; the first ids of the texts are "
            f"{', '.join(map(repr, ids))}. Columns: {', '.join(row.values)}; {self._columns.query(row)!r} is read as "
            f"the query. Name the columns: {self._columns.advice}; or say how articles are named: --set "
            f"collection.refers_to=id (or path, title, text)",
            where=path,
        )

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the queries of a split, each once, where it was read first."""
        belongs, seen = self.split_rules.membership(split), set[str]()
        for label in self.labels:
            if (query_id := text_id(label.query)) not in seen and belongs(query_id):
                seen.add(query_id)
                yield label.row, Query(query_id, label.query)

    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """Yield the judgements of a split: every passage of the article; what no article has, as it is in the label."""
        belongs, seen = self.split_rules.membership(split), dict[tuple[str, str], tuple[int, FileRow]]()
        for label in self.labels:
            if not belongs(query_id := text_id(label.query)):
                continue
            for doc_id in self._meant(label) or [self._named(label)]:
                before = seen.setdefault((query_id, doc_id), (label.relevance, label.row))
                if before[1] is label.row:
                    yield label.row, Judgement(query_id, doc_id, label.relevance)
                elif before[0] != label.relevance:
                    raise DrkitError(
                        f"the query {label.query!r:.60} has this article with the relevance {label.relevance}, and "
                        f"with {before[0]} at {before[1]}; delete one",
                        where=label.row,
                    )

    def _named(self, label: Label) -> str:
        """Return what a label says about its article, in the column that names it."""
        column = self.references[Path(label.row.path)].column
        if not label.articles.get(column):
            raise _empty(label.row, column)
        return label.articles[column]

    def _meant(self, label: Label) -> list[str]:
        return self.articles.passages(self.references[Path(label.row.path)].way, self._named(label))

    def files(self) -> Iterable[Path]:
        """Return the files of texts and labels."""
        return (*chain.from_iterable(one.files() for one in self.folders), *self.passage_files, *self.label_files)

    def notes(self) -> Iterator[str]:
        """Yield how texts and labels are read."""
        yield from passage_notes(self.passage_files, self._passage_columns)
        yield from chain.from_iterable(map(separator_note, {one.row.path: one.row for one in self.labels}.values()))
        for path in self._beside:
            yield f"{path} is in a folder of texts, and is read as labels alone"
        for path in self.label_files:
            labels = [label for label in self.labels if label.row.path == path]
            if labels:
                yield self._describe(path, labels)
        counts = Counter(len(self._meant(label)) > 1 for label in self.labels)
        if counts[True]:
            yield (
                f"{counts[True]:,} labels name an article of several passages, all of which are relevant; "
                f"--set collection.words=N makes longer passages of documents"
            )
        yield from self.split_rules.notes()

    def _describe(self, path: Path, labels: Sequence[Label]) -> str:
        row, reference = labels[0].row, self.references[path]
        query, relevance = self._columns.query(row), self._columns.relevance(row)
        read = {query, reference.column, relevance}
        unread = [name for name in row.values if name not in read and not is_negligible(name)]
        left = f"; columns that are not read: {', '.join(unread)}" if unread else ""
        graded = f", {relevance!r} is the relevance" if relevance else ""
        known = sum(bool(self._meant(label)) for label in labels)
        return (
            f"{path}: {query!r} is the query, {reference.column!r} is the {reference.way} of the "
            f"article ({known:,} of {len(labels):,} "
            f"labels found){graded}{left}; {self._columns.advice} says otherwise"
        )


def _sort_texts(paths: Sequence[str], words: int) -> tuple[tuple[DocumentsCollection, ...], tuple[Path, ...]]:
    """Return the folders of documents, and the files of tables. Raises DrkitError for a path that is neither."""
    folders: list[DocumentsCollection] = []
    files: list[Path] = []
    for text in paths:
        path = local_path(text)
        inner = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else []
        kinds = {"documents": any(one.suffix.lower() in ENDINGS for one in inner)}
        kinds["tables"] = any(file_kind(one) in FORMATS and not one.name.startswith(".") for one in path.glob("*"))
        if path.is_dir() and kinds["documents"] and kinds["tables"]:
            raise DrkitError(
                f"collection labelled: {path} has documents ({', '.join(ENDINGS)}) and tables ({', '.join(FORMATS)}); "
                f"name the files of texts one by one, or move the others (such as labels) to another folder"
            )
        if path.is_dir() and kinds["documents"]:
            folders.append(DocumentsCollection(DocumentsConfig(path=text, words=words)))
        elif path.suffix.lower() in ENDINGS and path.is_file():
            raise DrkitError(f"collection labelled: {path} is a single document; name its folder: {path.parent}")
        else:
            files.extend(passage_files(text, "collection labelled"))
    if twice := [str(path) for path, count in Counter(files).items() if count > 1]:
        raise DrkitError(f"collection labelled: {twice[0]} is given twice; name each file of texts once")
    return tuple(folders), tuple(files)


def _cell(row: FileRow, name: str) -> str:
    """Return the text of a cell, numbers as ids; empty for a missing one."""
    value: Any = row.values.get(name)
    if value is None or value == "":
        return ""
    return (row.id(name) if isinstance(value, int) and not isinstance(value, bool) else row.text(name)).strip()


def _empty(row: FileRow, name: str) -> DrkitError:
    return DrkitError(f"{name!r} is empty; fill it in, or delete the row", where=row)


def _relevance(row: FileRow, name: str) -> int:
    """Return the relevance in a row. Raises DrkitError unless it is a whole number from 0."""
    value: Any = row.values[name]
    try:
        number = parse_number(value.strip()) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if number < 0 or number != int(number):
        raise DrkitError(
            f"{name!r} must be a relevance, a whole number from 0, got {value!r:.40}; --columns {SCORE}=none ignores "
            f"the column",
            where=row,
        )
    return int(number)
