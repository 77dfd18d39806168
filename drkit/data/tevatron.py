"""Tevatron's files: a training query a line, with its passages; and a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.config import TevatronConfig
from drkit.data.corpus import id_hash
from drkit.data.layouts import CORPUS_NAMES, SPLIT_NAMES, named_file
from drkit.data.lines import Record, file_summary, json_lines
from drkit.data.qrels_files import QRELS_FORMATS, read_judgements
from drkit.data.records import existing_file, row_of
from drkit.data.splits import HeldOut
from drkit.data.text_files import ID_NAMES, TEXT_FORMATS, TEXT_NAMES, Columns, query_of, read_texts
from drkit.errors import DrkitError

_LINES = (".jsonl",)
_CORPUS_COLUMNS = Columns(("docid", *ID_NAMES), (*TEXT_NAMES, "document_text"))
_QUERIES = {"ids": ("query_id",), "texts": ("query", "query_text")}


class TevatronCollection:
    """Queries with `positive_passages` and `negative_passages`, each with `docid`, `title` and `text`.

    With a corpus its passages are the collection, and the other files name them by `docid`; without one the
    collection is all passages of the files, and a `docid` must mean one text. Files whose queries have no positives
    (Tevatron's dev and test files) need judgements. Without files for them, dev and test are shares of the training
    queries.

    Raises DrkitError where a file is missing; bad lines are named as `file:line` when read.
    """

    def __init__(self, config: TevatronConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection tevatron: no path given; name a training file, as in `tevatron:train.jsonl`")
        self._layout = _Layout.of(config)
        self.name = f"tevatron:{Path(config.path).expanduser().resolve().name}"
        self._held_out = HeldOut.of(self._layout.queries, dev=config.dev_share, test=config.test_share)

    def passages(self) -> Iterator[Passage]:
        """Those of the corpus; without one those of all queries, each once."""
        return (passage for _, passage in self._placed_passages())

    def splits(self) -> tuple[str, ...]:
        """Those with a file, and those taken from the training queries."""
        return self._held_out.splits()

    def queries(self, split: str) -> Iterator[Query]:
        """The queries of a split, in the file's order; of those with judgements of their own, the judged ones."""
        return (query for _, query in self._placed_queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The positives of a split with relevance 1; or its file of judgements."""
        return (judgement for _, judgement in self._placed_judgements(split))

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """(query id, passage id) of the negative passages, in the file's order."""
        return (ids for _, ids in self._placed_negatives(split))

    def _placed_passages(self) -> Iterator[tuple[Record, Passage]]:
        if self._layout.corpus:
            yield from read_texts(self._layout.corpus, _CORPUS_COLUMNS)
            return
        seen: dict[int, int] = {}
        for path in self._layout.queries.values():
            for row in json_lines(path):
                for passage in (*_passages(row, "positive", whole=True), *_passages(row, "negative", whole=True)):
                    key, content = id_hash(passage.doc_id), id_hash(f"{passage.title}\0{passage.text}")
                    if key not in seen:
                        seen[key] = content
                        yield row, passage
                    elif seen[key] != content:
                        raise DrkitError(f"{row}: the passage {passage.doc_id!r} has another title or text further up")

    def _placed_queries(self, split: str) -> Iterator[tuple[Record, Query]]:
        judged = None
        if split in self._layout.qrels:
            judged = {judgement.query_id for _, judgement in read_judgements(self._layout.qrels[split])}
        for row in self._rows(split):
            query = query_of(row, **_QUERIES)
            if judged is None or query.query_id in judged:
                yield row, query

    def _placed_judgements(self, split: str) -> Iterator[tuple[Any, Judgement]]:
        if split in self._layout.qrels:
            yield from read_judgements(self._layout.qrels[split])
            return
        for row in self._rows(split):
            query_id = row.id("query_id")
            yield from ((row, Judgement(query_id, passage.doc_id, 1)) for passage in _passages(row, "positive"))

    def _placed_negatives(self, split: str) -> Iterator[tuple[Record, tuple[str, str]]]:
        for row in self._rows(split):
            query_id = row.id("query_id")
            yield from ((row, (query_id, passage.doc_id)) for passage in _passages(row, "negative"))

    def _rows(self, split: str) -> Iterator[Record]:
        for row in json_lines(self._layout.queries[self._held_out.source(split)]):
            if self._held_out.contains(split, row.id("query_id")):
                yield row

    def describe(self) -> Mapping[str, Any]:
        """The size and SHA-256 of each file, and the shares that were taken from the training queries."""
        return {
            "collection": "tevatron",
            "files": {str(path.resolve()): file_summary(path) for path in self._layout.paths},
            "shares": dict(self._held_out.shares),
        }

    def locate(self, table: str, split: str, row: int) -> str:
        """Where row `row` of a table was read: `file:line`."""
        if table == "passages":
            return row_of(self._placed_passages(), row)
        tables: Mapping[str, Callable[[str], Iterator[tuple[Any, Any]]]] = {
            "queries": self._placed_queries,
            "judgements": self._placed_judgements,
            "negatives": self._placed_negatives,
        }
        return row_of(tables[table](split), row)


@frozen
class _Layout:
    """Where the files are: of queries and of judgements by split, and the corpus."""

    queries: Mapping[str, Path]
    corpus: Path | None
    qrels: Mapping[str, Path]

    @classmethod
    def of(cls, config: TevatronConfig) -> _Layout:
        """What the settings name, and else what the folder has."""
        folder = Path(config.path).expanduser()
        what = "collection tevatron"
        if folder.is_dir():
            queries = {s: p for s in SPLIT_NAMES if (p := named_file(folder, SPLIT_NAMES[s], s, formats=_LINES))}
            corpus = named_file(folder, CORPUS_NAMES)
        else:
            queries, corpus = {"train": existing_file(config.path, what, _LINES)}, None
        named = {"dev": config.dev, "test": config.test}
        queries |= {split: existing_file(path, what, _LINES) for split, path in named.items() if path}
        if not queries:
            raise DrkitError(f"{what}: {folder} has none of train.jsonl, dev.jsonl, test.jsonl (or .jsonl.gz)")
        qrels = {"dev": config.dev_qrels, "test": config.test_qrels}
        lonely = [split for split, path in qrels.items() if path and split not in queries]
        if lonely:
            raise DrkitError(f"{what}: {lonely[0]}_qrels judges queries that no file has; give {lonely[0]} too")
        if config.corpus:
            corpus = existing_file(config.corpus, what, TEXT_FORMATS)
        return cls(queries, corpus, {s: existing_file(p, what, QRELS_FORMATS) for s, p in qrels.items() if p})

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return (*self.queries.values(), *((self.corpus,) if self.corpus else ()), *self.qrels.values())


def _passages(row: Record, kind: str, *, whole: bool = False) -> Iterator[Passage]:
    """The positive or negative passages of a query; `whole`: with their texts, which other files do not have."""
    for place, item in enumerate(_listed(row, f"{kind}_passages")):
        where = Record(f"{row}: {kind}_passages", place, item if isinstance(item, dict) else {}, "item")
        if whole:
            yield Passage(where.id("docid"), where.text("text"), where.text("title", default=""))
        else:
            yield Passage(where.id("docid"), "")
    for doc_id in _listed(row, f"{kind}_document_ids"):
        if whole:
            raise DrkitError(f"{row}: passages by id need their texts: --set collection.corpus=FILE names the corpus")
        yield Passage(Record(str(row), 0, {"docid": doc_id}, "item").id("docid"), "")


def _listed(row: Record, key: str) -> Sequence[Any]:
    value = row.record.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DrkitError(f"{row}: {key!r} is {type(value).__name__}, a list is wanted")
    return value
