"""Tevatron's training files: queries, each with its positive and negative passages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import (
    QRELS_FORMATS,
    SPLIT_NAMES,
    FileCollection,
    PassageColumns,
    find_corpus,
    find_file,
    judged_queries,
    passage_files,
    passage_notes,
    read_passages,
)
from drkit.data.columns import GivenColumns
from drkit.data.corpus import id_hash
from drkit.data.qrels import read_judgements
from drkit.data.rows import FileRow, read_jsonl, require_file
from drkit.data.specs import TevatronConfig
from drkit.data.splits import SPLITS, Splits
from drkit.data.topics import query_of
from drkit.errors import DrkitError


class TevatronCollection(FileCollection):
    """Queries with `positive_passages` and `negative_passages`, each with `docid`, `title` and `text`.

    With a corpus, its passages are the collection and the other files name them by `docid`. Without one, the
    collection is all passages of the files, and a `docid` must always have the same text. Files whose queries have no
    positives (Tevatron's dev and test files) need judgements. Without files of their own, dev and test are shares of
    the training queries.

    Raises DrkitError if a file is missing; bad lines are named as `file:line` when they are read.
    """

    subject: ClassVar[str] = "tevatron"
    formats: ClassVar[tuple[str, ...]] = (".jsonl",)

    def __init__(self, config: TevatronConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        subject = f"collection {self.subject}"
        if not config.path:
            example = f"{self.subject}:train{self.formats[0]}"
            raise DrkitError(f"{subject}: no path given; name a training file, as in `{example}`")
        folder = local_path(config.path)
        self.name = f"{self.subject}:{folder.resolve().name}"
        self._columns = PassageColumns(GivenColumns.of(config.columns))
        self._queries = _query_files(config, folder, subject, self.formats)
        corpus = find_corpus(folder) if folder.is_dir() else ()
        self.passage_files = passage_files(config.corpus, subject) if config.corpus else corpus
        qrels = {"dev": config.dev_qrels, "test": config.test_qrels}
        self._qrels = {split: require_file(path, subject, QRELS_FORMATS) for split, path in qrels.items() if path}
        for split in sorted(self._qrels.keys() - self._queries.keys()):
            raise DrkitError(f"{subject}: {split}_qrels needs the {split} queries; set {split} to their file")

    @cached_property
    def split_rules(self) -> Splits:
        """The splits with a file, and those that are a share of the training queries."""
        shares = {"dev_share": self.config.dev_share, "test_share": self.config.test_share}
        return Splits.of(self.name, self._queries, **shares).filled(self._answered)

    def _answered(self) -> Iterator[str]:
        """Yield the id of every training query with a positive."""
        rows = self._read(self._queries["train"])
        return (row.id("query_id") for row in rows if next(_items(row, "positive"), None))

    def located_passages(self) -> Iterator[tuple[FileRow, Passage]]:
        """Yield the passages of the corpus; without one, those of all queries, each once."""
        if self.passage_files:
            return read_passages(self.passage_files, self._columns)
        return self._passages_of_queries()

    def _passages_of_queries(self) -> Iterator[tuple[FileRow, Passage]]:
        seen: dict[int, int] = {}
        for path in self._queries.values():
            for row in self._read(path):
                for passage in (*_passages(row, "positive"), *_passages(row, "negative")):
                    key, content = id_hash(passage.doc_id), id_hash(f"{passage.title}\0{passage.text}")
                    if key not in seen:
                        seen[key] = content
                        yield row, passage
                    elif seen[key] != content:
                        raise DrkitError(
                            f"the passage {passage.doc_id!r} has a different title or text than on an earlier "
                            f"line; give each text a unique id",
                            where=row,
                        )

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the queries of a split; only the judged ones if the split has a qrels file."""
        queries = ((row, query_of(row, ids=("query_id",), texts=("query", "query_text"))) for row in self._rows(split))
        return judged_queries(queries, self.judgements(split)) if split in self._qrels else queries

    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """Yield the positives of a split with relevance 1; or the judgements of its qrels file."""
        if split in self._qrels:
            yield from read_judgements(self._qrels[split])
        else:
            for row, query_id, doc_id in self._listed(split, "positive"):
                yield row, Judgement(query_id, doc_id, 1)

    def located_negatives(self, split: str) -> Iterator[tuple[FileRow, tuple[str, str]]]:
        """Yield (query id, passage id) of the negatives of a split."""
        return ((row, (query_id, doc_id)) for row, query_id, doc_id in self._listed(split, "negative"))

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream (query id, passage id) of the negatives of a split, in the order of the file."""
        return (ids for _, ids in self.located_negatives(split))

    def _listed(self, split: str, kind: str) -> Iterator[tuple[FileRow, str, str]]:
        for row in self._rows(split):
            query_id = row.id("query_id")
            yield from ((row, query_id, item.id("docid")) for item in _items(row, kind))

    def _read(self, path: Path) -> Iterator[FileRow]:
        """Return the rows of a file of queries."""
        return read_jsonl(path)

    def _rows(self, split: str) -> Iterator[FileRow]:
        belongs = self.split_rules.membership(split)
        rows = self._read(self._queries[self.split_rules.source(split)])
        return (row for row in rows if belongs(row.id("query_id")))

    def files(self) -> Iterable[Path]:
        """Return the files of queries, of passages and of judgements."""
        return (*self._queries.values(), *self.passage_files, *self._qrels.values())

    def notes(self) -> Iterator[str]:
        """Yield how the corpus is read, and which splits have no query."""
        yield from passage_notes(self.passage_files, self._columns)
        yield from self.split_rules.notes()


def _query_files(config: TevatronConfig, folder: Path, subject: str, formats: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of queries by split: found in the folder, or the training file, and those that are set."""
    if folder.is_dir():
        found = {s: p for s, names in SPLIT_NAMES.items() if (p := find_file(folder, names, s, formats=formats))}
    else:
        found = {"train": require_file(config.path, subject, formats)}
    given = {"dev": config.dev, "test": config.test}
    found |= {split: require_file(path, subject, formats) for split, path in given.items() if path}
    if not found:
        names = ", ".join(f"{split}{formats[0]}" for split in SPLITS)
        raise DrkitError(f"{subject}: {folder} has none of {names} (or .gz, .zst)")
    return found


def _passages(row: FileRow, kind: str) -> Iterator[Passage]:
    """Yield the positive or negative passages of a query, with their texts."""
    if _list(row, f"{kind}_document_ids"):
        raise DrkitError(
            "passages given by id alone need a corpus; name its file: --set collection.corpus=FILE", where=row
        )
    for item in _items(row, kind):
        yield Passage(item.id("docid"), item.text("text"), item.text("title", default=""))


def _items(row: FileRow, kind: str) -> Iterator[FileRow]:
    """Yield the positive or negative passages of a query: objects with docid, title and text, or ids alone."""
    for number, item in enumerate(_list(row, f"{kind}_passages"), start=1):
        yield FileRow(f"{row}: {kind}_passages", number, item if isinstance(item, dict) else {}, "item")
    for number, doc_id in enumerate(_list(row, f"{kind}_document_ids"), start=1):
        yield FileRow(str(row), number, {"docid": doc_id}, "item")


def _list(row: FileRow, key: str) -> Sequence[Any]:
    value = row.values.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DrkitError(f"{key!r} must be a list, got {type(value).__name__}", where=row)
    return value
