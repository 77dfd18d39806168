"""A collection on disk: passages, queries, judgements and given negatives in Arrow, memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drkit.core.types import Judgement, Query
from drkit.data.corpus import MappedTable, StoredCorpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

QUERIES, JUDGEMENTS, NEGATIVES = "queries.arrow", "judgements.arrow", "negatives.arrow"


def open_collection(folder: Path) -> StoredCollection:
    """The collection that `write_collection` wrote to `folder`. Raises DrkitError where there is none."""
    return StoredCollection(Path(folder))


class StoredCollection:
    """A collection on disk: `corpus`, and queries, judgements and given negatives by split."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus = StoredCorpus(folder)
        self._queries = MappedTable(folder / QUERIES)
        self._judgements = MappedTable(folder / JUDGEMENTS)

    def splits(self) -> tuple[str, ...]:
        """The splits that have queries."""
        present = {split for *_, split in self._queries.rows()}
        return tuple(split for split in ("train", "dev", "test") if split in present)

    def queries(self, split: str) -> Iterator[Query]:
        """The queries of a split, none where there is no such split."""
        return (Query(query_id, text) for query_id, text, its in self._queries.rows() if its == split)

    def judgements(self, split: str) -> Iterator[Judgement]:
        """The judgements of a split, none where there is no such split."""
        return (Judgement(q, d, relevance) for q, d, relevance, its in self._judgements.rows() if its == split)

    def positives(self, split: str) -> dict[str, dict[str, int]]:
        """Judged positives: query id -> passage id -> relevance, in the judgements' order."""
        found: dict[str, dict[str, int]] = {}
        for judgement in self.judgements(split):
            if judgement.relevance > 0:
                found.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.relevance
        return found

    def positive_places(self, split: str) -> dict[str, NDArray[np.int64]]:
        """Judged positives by where they stand in the corpus: query id -> places i64[n]."""
        judged = self.positives(split)
        return {query: np.asarray(self.corpus.positions(list(docs))) for query, docs in judged.items()}

    def negatives(self, split: str) -> dict[str, list[str]]:
        """Negatives that came with the collection: query id -> passage ids, each once and never a judged positive.

        Those of the training file come first, in its order; then what was judged not relevant. Queries without any
        are left out.
        """
        positives = self.positives(split)
        found: dict[str, dict[str, None]] = {}
        for query_id, doc_id in self._unwanted(split):
            if doc_id not in positives.get(query_id, ()):
                found.setdefault(query_id, {})[doc_id] = None
        return {query_id: list(doc_ids) for query_id, doc_ids in found.items()}

    def _unwanted(self, split: str) -> Iterator[tuple[str, str]]:
        if (path := self.folder / NEGATIVES).is_file():
            yield from ((query_id, doc_id) for query_id, doc_id, its in MappedTable(path).rows() if its == split)
        yield from ((item.query_id, item.doc_id) for item in self.judgements(split) if item.relevance <= 0)
