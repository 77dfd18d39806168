"""Tevatron's files: one training query per line, with its passages; and a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import (
    CORPUS_NAMES,
    ID_COLUMNS,
    QRELS_FORMATS,
    SPLIT_NAMES,
    TEXT_COLUMNS,
    FileCollection,
    PassageColumns,
    Splits,
    find_file,
    judged_queries,
    query_of,
    read_judgements,
    read_passages,
)
from drkit.data.corpus import id_hash
from drkit.data.rows import Row, file_summary, read_jsonl, require_file
from drkit.data.specs import TevatronConfig
from drkit.errors import DrkitError

_FORMATS = (".jsonl",)
_SUBJECT = "collection tevatron"
_CORPUS_COLUMNS = PassageColumns(("docid", *ID_COLUMNS), (*TEXT_COLUMNS, "document_text"))


class TevatronCollection(FileCollection):
    """Queries with `positive_passages` and `negative_passages`, each with `docid`, `title` and `text`.

    With a corpus, its passages are the collection and the other files name them by `docid`. Without one, the
    collection is all passages of the files, and a `docid` must always have the same text. Files whose queries have no
    positives (Tevatron's dev and test files) need judgements. Without files of their own, dev and test are shares of
    the training queries.

    Raises DrkitError if a file is missing; bad lines are named as `file:line` when they are read.
    """

    def __init__(self, config: TevatronConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError(f"{_SUBJECT}: no path given; name a training file, as in `tevatron:train.jsonl`")
        folder = local_path(config.path)
        self.name = f"tevatron:{folder.resolve().name}"
        self._queries = _query_files(config, folder)
        corpus = find_file(folder, CORPUS_NAMES) if folder.is_dir() else None
        self._corpus = require_file(config.corpus, _SUBJECT) if config.corpus else corpus
        qrels = {"dev": config.dev_qrels, "test": config.test_qrels}
        self._qrels = {split: require_file(path, _SUBJECT, QRELS_FORMATS) for split, path in qrels.items() if path}
        for split in sorted(self._qrels.keys() - self._queries.keys()):
            raise DrkitError(f"{_SUBJECT}: {split}_qrels needs the {split} queries; set {split} to their file")

    @property
    def divided(self) -> Splits:
        """The splits with a file, and those that are a share of the training queries."""
        return Splits.of(self.name, self._queries, dev_share=self.config.dev_share, test_share=self.config.test_share)

    def located_passages(self) -> Iterator[tuple[Row, Passage]]:
        """The passages of the corpus; without one, those of all queries, each once."""
        return read_passages(self._corpus, _CORPUS_COLUMNS) if self._corpus else self._passages_of_queries()

    def _passages_of_queries(self) -> Iterator[tuple[Row, Passage]]:
        seen: dict[int, int] = {}
        for path in self._queries.values():
            for row in read_jsonl(path):
                for passage in (*_passages(row, "positive"), *_passages(row, "negative")):
                    key, content = id_hash(passage.doc_id), id_hash(f"{passage.title}\0{passage.text}")
                    if key not in seen:
                        seen[key] = content
                        yield row, passage
                    elif seen[key] != content:
                        raise DrkitError(
                            f"{row}: the passage {passage.doc_id!r} has a different title or text than on an earlier "
                            f"line; give each text a unique id"
                        )

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """The queries of a split; only the judged ones if the split has a qrels file."""
        queries = ((row, query_of(row, ids=("query_id",), texts=("query", "query_text"))) for row in self._rows(split))
        return judged_queries(queries, self.judgements(split)) if split in self._qrels else queries

    def located_judgements(self, split: str) -> Iterator[tuple[object, Judgement]]:
        """The positives of a split with relevance 1; or the judgements of its qrels file."""
        if split in self._qrels:
            yield from read_judgements(self._qrels[split])
        else:
            for row, query_id, doc_id in self._listed(split, "positive"):
                yield row, Judgement(query_id, doc_id, 1)

    def located_negatives(self, split: str) -> Iterator[tuple[Row, tuple[str, str]]]:
        """(query id, passage id) of the negatives of a split."""
        return ((row, (query_id, doc_id)) for row, query_id, doc_id in self._listed(split, "negative"))

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream (query id, passage id) of the negatives of a split, in the order of the file."""
        return (ids for _, ids in self.located_negatives(split))

    def _listed(self, split: str, kind: str) -> Iterator[tuple[Row, str, str]]:
        for row in self._rows(split):
            query_id = row.id("query_id")
            yield from ((row, query_id, item.id("docid")) for item in _items(row, kind))

    def _rows(self, split: str) -> Iterator[Row]:
        belongs = self.divided.membership(split)
        rows = read_jsonl(self._queries[self.divided.source(split)])
        return (row for row in rows if belongs(row.id("query_id")))

    def describe(self) -> Mapping[str, Any]:
        """The size and SHA-256 of each file, and the shares taken from the training queries."""
        files = [*self._queries.values(), *([self._corpus] if self._corpus else []), *self._qrels.values()]
        return {
            "collection": "tevatron",
            "files": {str(path.resolve()): file_summary(path) for path in files},
            "shares": dict(self.divided.held_out),
        }


def _query_files(config: TevatronConfig, folder: Path) -> dict[str, Path]:
    """The files of queries by split: found in the folder, or the training file, and those that are set."""
    if folder.is_dir():
        found = {s: p for s, names in SPLIT_NAMES.items() if (p := find_file(folder, names, s, formats=_FORMATS))}
    else:
        found = {"train": require_file(config.path, _SUBJECT, _FORMATS)}
    given = {"dev": config.dev, "test": config.test}
    found |= {split: require_file(path, _SUBJECT, _FORMATS) for split, path in given.items() if path}
    if not found:
        raise DrkitError(f"{_SUBJECT}: {folder} has none of train.jsonl, dev.jsonl, test.jsonl (or .jsonl.gz)")
    return found


def _passages(row: Row, kind: str) -> Iterator[Passage]:
    """The positive or negative passages of a query, with their texts."""
    if _list(row, f"{kind}_document_ids"):
        raise DrkitError(
            f"{row}: passages given by id alone need a corpus; name its file: --set collection.corpus=FILE"
        )
    for item in _items(row, kind):
        yield Passage(item.id("docid"), item.text("text"), item.text("title", default=""))


def _items(row: Row, kind: str) -> Iterator[Row]:
    """The positive or negative passages of a query: objects with docid, title and text, or ids alone."""
    for number, item in enumerate(_list(row, f"{kind}_passages"), start=1):
        yield Row(f"{row}: {kind}_passages", number, item if isinstance(item, dict) else {}, "item")
    for number, doc_id in enumerate(_list(row, f"{kind}_document_ids"), start=1):
        yield Row(str(row), number, {"docid": doc_id}, "item")


def _list(row: Row, key: str) -> Sequence[Any]:
    value = row.values.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DrkitError(f"{row}: {key!r} must be a list, got {type(value).__name__}")
    return value
