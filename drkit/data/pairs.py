"""Training data as sentence-transformers and others have it: rows of a query, its passage and negatives, as texts.

Texts have no ids there, so the id of a text is its hash: the same text is the same passage, or query, everywhere.
Columns have the names in common use, or those that settings give (`PairColumns`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.files import local_path
from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.collection import SPLIT_NAMES, FileCollection
from drkit.data.columns import (
    QUERY_COLUMN,
    TEXT_COLUMN,
    Columns,
    checked,
    columns_advice,
)
from drkit.data.pair_columns import Pair, PairColumns
from drkit.data.rows import FORMATS, FileRow, file_kind, read_rows, require_file, separator_note
from drkit.data.specs import PairsConfig
from drkit.data.splits import Splits
from drkit.errors import DrkitError

RowSource = Callable[[], Iterator[FileRow]]


def text_id(text: str) -> str:
    """Return the id of a text: 80 bits of its hash, in hexadecimal."""
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


@frozen(slots=False)
class PairTables:
    """The tables of a collection, read from rows of pairs; each table reads the rows again.

    sources: the rows of each split that has its own; shares: which splits are a share of the training queries. Memory:
    the hashes of all passages while they are read.
    """

    sources: Mapping[str, RowSource]
    columns: PairColumns
    shares: Splits

    @cached_property
    def split_rules(self) -> Splits:
        """The splits with queries: a share of few queries may be empty."""
        return self.shares.filled(self._answered)

    def _answered(self) -> Iterator[str]:
        """Yield the id of the query of every training pair that is a positive."""
        for row in checked(self.sources["train"](), self.columns.check):
            pair = self.columns.read(row)
            if pair.relevance > 0:
                yield text_id(pair.anchor)

    def passages(self) -> Iterator[tuple[FileRow, Passage]]:
        """Yield every passage, positives and negatives, once."""
        seen: set[int] = set()
        for rows in self.sources.values():
            for row in checked(rows(), self.columns.check):
                pair = self.columns.read(row)
                for text in (*pair.positives, *pair.negatives):
                    doc_id = text_id(text)
                    if (key := int(doc_id, 16)) not in seen:
                        seen.add(key)
                        yield row, Passage(doc_id, text)

    def queries(self, split: str) -> Iterator[tuple[FileRow, Query]]:
        """Yield the queries of a split, each once, where it was read first."""
        seen: set[str] = set()
        for row, query_id, pair in self._pairs(split):
            if query_id not in seen:
                seen.add(query_id)
                yield row, Query(query_id, pair.anchor)

    def judgements(self, split: str) -> Iterator[tuple[FileRow, Judgement]]:
        """Yield the judgements of a split, one per pair."""
        for row, query_id, pair in self._pairs(split):
            yield from ((row, Judgement(query_id, text_id(text), pair.relevance)) for text in pair.positives)

    def negatives(self, split: str) -> Iterator[tuple[FileRow, tuple[str, str]]]:
        """Yield (query id, passage id) of the negatives of a split."""
        for row, query_id, pair in self._pairs(split):
            yield from ((row, (query_id, text_id(text))) for text in pair.negatives)

    def scores(self, split: str) -> Iterator[tuple[FileRow, tuple[str, str, float]]]:
        """Yield (query id, passage id, score) of a teacher's scores of a split."""
        for row, query_id, pair in self._pairs(split):
            yield from ((row, (query_id, text_id(text), score)) for text, score in pair.scores.items())

    def notes(self) -> Iterator[str]:
        """Yield what was assumed of the training file: its columns without a header, and which pairs are positives."""
        first = next(self.sources[self.split_rules.source("train")](), None)
        yield from separator_note(first)
        if first and first.is_headless:
            names = ", ".join(f"{cell!r:.40} is the {name}" for name, cell in islice(first.values.items(), 2))
            yield (
                f"{first.path} has no header with names of columns that are known: in its first line, {names}; a "
                f"header or {columns_advice(QUERY_COLUMN, TEXT_COLUMN)} says otherwise"
            )
        if first and (named := self.columns.describe_names(first)):
            yield f"{first.path}: {named}; {columns_advice(QUERY_COLUMN, TEXT_COLUMN)} says otherwise"
        if first and (rule := self.columns.describe_score(first)):
            yield f"positives are the pairs with {rule}"
        if first and (unread := self.columns.unread_columns(first)):
            yield f"columns that are not read: {', '.join(name or 'one without a name' for name in unread)}"
        yield from self.split_rules.notes()

    def _pairs(self, split: str) -> Iterator[tuple[FileRow, str, Pair]]:
        belongs = self.split_rules.membership(split)
        for row in checked(self.sources[self.split_rules.source(split)](), self.columns.check):
            pair = self.columns.read(row)
            if belongs(query_id := text_id(pair.anchor)):
                yield row, query_id, pair


class TableCollection(FileCollection):
    """A collection whose splits, passages, queries, judgements and negatives `tables` reads.

    tables: `PairTables`, or an object with its attributes and streams.
    """

    tables: Any

    @property
    def split_rules(self) -> Splits:
        """The splits of the tables, and those that are a share of the training queries."""
        split_rules: Splits = self.tables.split_rules
        return split_rules

    def located_passages(self) -> Iterator[tuple[FileRow, Passage]]:
        """Yield every passage, once."""
        return iter(self.tables.passages())

    def located_queries(self, split: str) -> Iterator[tuple[object, Query]]:
        """Yield the judged queries of a split, each once."""
        return iter(self.tables.queries(split))

    def located_judgements(self, split: str) -> Iterator[tuple[FileRow, Judgement]]:
        """Yield the judgements of a split; of pairs one each: relevance 1, or 0 if the score is too low."""
        return iter(self.tables.judgements(split))

    def located_negatives(self, split: str) -> Iterator[tuple[FileRow, tuple[str, str]]]:
        """Yield (query id, passage id) of the negatives that come with pairs."""
        return iter(self.tables.negatives(split))

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """Stream (query id, passage id) of the negatives of a split, in the order they are read."""
        return (ids for _, ids in self.located_negatives(split))

    def notes(self) -> Iterator[str]:
        """Yield what is assumed of the tables."""
        return iter(self.tables.notes())

    def teacher_scores(self, split: str) -> Iterator[tuple[str, str, float]]:
        """Stream (query id, passage id, score) of the teacher's scores that come with pairs."""
        return (found for _, found in self.tables.scores(split))


class PairsCollection(TableCollection):
    """Pairs or triples of texts: a query, a passage that answers it, and negatives if there are any.

    Formats: .jsonl, .tsv, .csv, compressed or not, and .parquet; a table has a header or the columns query, passage and
    negatives. Without files of their own, dev and test are shares of the training queries.

    Raises DrkitError if a file is missing; bad rows are named as `file:line` when they are read.
    """

    def __init__(self, config: PairsConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection pairs: no path given; name a training file or a folder, as in `pairs:PATH`")
        self.name = f"pairs:{local_path(config.path).resolve().name}"
        self._files = _split_files(config)
        columns = PairColumns(config)
        split_rules = Splits.of(self.name, self._files, dev_share=config.dev_share, test_share=config.test_share)
        sources = {split: partial(read_files, paths, columns) for split, paths in self._files.items()}
        self.tables = PairTables(sources, columns, split_rules)

    def files(self) -> Iterable[Path]:
        """Return every file that pairs are read from."""
        return (path for paths in self._files.values() for path in paths)


def read_files(paths: list[Path], columns: Columns) -> Iterator[FileRow]:
    """Stream the rows of files, one after the other; see `read_rows`."""
    for path in paths:
        yield from read_rows(path, columns)


def _split_files(config: PairsConfig) -> dict[str, list[Path]]:
    """Return the files of each split: the training file or what a folder has for the split, and those that are set.

    In a folder: `train.jsonl`, `train-00000-of-00002.parquet`, `validation.csv.gz` and so on.
    """
    subject, folder = "collection pairs", local_path(config.path)
    given = {
        split: [require_file(path, subject)] for split, path in (("dev", config.dev), ("test", config.test)) if path
    }
    if not folder.is_dir():
        return {"train": [require_file(config.path, subject)], **given}
    found = {split: _files_of(folder, names) for split, names in SPLIT_NAMES.items()}
    if not found["train"]:
        raise DrkitError(
            f"{subject}: {folder} has no training file; expected train.* with one of {', '.join(FORMATS)} (or .gz)"
        )
    return {**{split: paths for split, paths in found.items() if paths}, **given}


def _files_of(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Return the files whose names begin with a split's name; of the first of `names` that has any."""
    candidates = sorted(path for path in folder.iterdir() if path.is_file() and file_kind(path) in FORMATS)
    by_name = ([p for p in candidates if p.name.startswith(name) and p.name[len(name)] in ".-_"] for name in names)
    return next(filter(None, by_name), [])
