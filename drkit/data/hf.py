"""Data sets of Hugging Face, from a folder or from the hub: corpus, queries and judgements, or pairs of texts.

Local data is streamed where it lies. Only a data set that is named by an id is downloaded; its code is never run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from attrs import frozen

from drkit.core.types import BuildContext, Judgement, Passage, Query
from drkit.data.config import HfConfig
from drkit.data.hf_sources import joined, open_part, parts_of
from drkit.data.lines import Record, whole_number
from drkit.data.pair_rows import PairColumns, PairTables, Rows
from drkit.data.records import row_of
from drkit.data.splits import HeldOut
from drkit.data.text_files import Columns, passage_of, query_of
from drkit.errors import DrkitError

_QRELS = (
    ("query-id", "query_id", "qid"),
    ("corpus-id", "corpus_id", "doc_id", "docid"),
    ("score", "relevance", "label"),
)


class HfCollection:
    """A data set with `corpus`, `queries` and judgements, as BEIR's are; or one with columns for query and passage.

    A folder: one that `save_to_disk` wrote, or with Parquet, Arrow, JSON or CSV files, named by split; the parts of a
    corpus in folders or files called `corpus`, `queries` and `qrels`. On the hub they are configurations, and the
    judgements may be another data set (`qrels`). Pairs are read as `PairsCollection` reads them.

    Raises DrkitError where a data set cannot be had or lacks a part; bad rows are named when read.
    """

    def __init__(self, config: HfConfig, _context: BuildContext | None = None) -> None:
        self.config = config
        if not config.path:
            raise DrkitError("collection hf: no data set given; name a folder or a hub id, as in `hf:BeIR/scifact`")
        self.name = f"hf:{config.path}"

    @cached_property
    def _tables(self) -> PairTables | RetrievalTables:
        config = self.config
        columns = PairColumns(config.anchor, config.positive, config.negatives, config.score, config.min_score)
        parts = parts_of(config.path)
        if not config.subset and {"corpus", "queries"} <= parts:
            judged = config.qrels or config.path
            qrels = open_part(judged, "" if config.qrels else "qrels" if "qrels" in parts else "default")
            corpus, queries = (joined(open_part(config.path, part)) for part in ("corpus", "queries"))
            return RetrievalTables(corpus, queries, qrels)
        sources = open_part(config.path, config.subset, columns)
        return PairTables(sources, columns, HeldOut.of(sources, dev=config.dev_share, test=config.test_share))

    def passages(self) -> Iterator[Passage]:
        """Every row of the corpus; of pairs, every passage once."""
        return self._tables.passages()

    def splits(self) -> tuple[str, ...]:
        """The splits of the judgements or pairs, and those taken from the training pairs."""
        return self._tables.held_out.splits()

    def queries(self, split: str) -> Iterator[Query]:
        """The judged queries of a split."""
        return self._tables.queries(split)

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The judgements of a split."""
        return self._tables.judgements(split)

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """(query id, passage id) of the negatives that came with the pairs."""
        return self._tables.negatives(split)

    def describe(self) -> Mapping[str, Any]:
        """What was named, and the version of `datasets`."""
        from importlib.metadata import version

        return {
            "collection": "hf",
            "path": self.config.path,
            "subset": self.config.subset,
            "qrels": self.config.qrels,
            "shares": dict(self._tables.held_out.shares),
            "datasets": version("datasets"),
        }

    def locate(self, table: str, split: str, row: int) -> str:
        """Which row of the data set row `row` of a table is."""
        return self._tables.locate(table, split, row)


@frozen
class RetrievalTables:
    """Rows of a corpus, of queries and of judgements by split, as the tables of a collection."""

    corpus: Rows
    all_queries: Rows
    qrels: Mapping[str, Rows]

    @property
    def held_out(self) -> HeldOut:
        """Every split has judgements of its own."""
        return HeldOut(self.qrels)

    def passages(self) -> Iterator[Passage]:
        """Every row of the corpus."""
        return (passage_of(row, Columns()) for row in self.corpus())

    def queries(self, split: str) -> Iterator[Query]:
        """The judged queries of a split."""
        return (query for _, query in self._placed_queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The judgements of a split."""
        return (judgement for _, judgement in self._placed_judgements(split))

    def negatives(self, _split: str) -> Iterator[tuple[str, str]]:
        """None beyond what is judged not relevant."""
        return iter(())

    def locate(self, table: str, split: str, row: int) -> str:
        """Which row of the data set row `row` of a table is."""
        tables: Mapping[str, Any] = {
            "passages": lambda: ((record, None) for record in self.corpus()),
            "queries": lambda: self._placed_queries(split),
            "judgements": lambda: self._placed_judgements(split),
        }
        return row_of(tables[table](), row) if table in tables else ""

    def _placed_queries(self, split: str) -> Iterator[tuple[Record, Query]]:
        judged = {judgement.query_id for judgement in self.judgements(split)}
        return ((row, query) for row in self.all_queries() if (query := query_of(row)).query_id in judged)

    def _placed_judgements(self, split: str) -> Iterator[tuple[Record, Judgement]]:
        for row in self.qrels[self.held_out.source(split)]():
            query, doc, score = (row.first(names) for names in _QRELS)
            relevance = whole_number(str(row.record[score]), str(row))
            yield row, Judgement(row.id(query), row.id(doc), relevance)
