"""A collection on disk: passages, and each split's queries, judgements and given negatives, memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.core.types import Judgement, Query
from drkit.data.corpus import MappedTable, StoredCorpus
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPLITS = ("train", "dev", "test")
PASSAGES = "passages"
QUERIES, JUDGEMENTS, NEGATIVES = "queries.arrow", "judgements.arrow", "negatives.arrow"


def open_collection(folder: Path) -> StoredCollection:
    """Open the collection that `write_collection` wrote to `folder`. Raises DrkitError if it is missing."""
    folder = Path(folder)
    splits = {split: folder / split for split in SPLITS if (folder / split).is_dir()}
    collection = collection_of({PASSAGES: folder / PASSAGES, **splits})
    len(collection.corpus)
    return collection


def collection_of(parts: Mapping[str, Path]) -> StoredCollection:
    """Open the parts of a collection that a stage reads: `passages`, and splits by name; other names are ignored."""
    return StoredCollection(parts.get(PASSAGES), {split: parts[split] for split in SPLITS if split in parts})


def read_queries(path: Path) -> Iterator[Query]:
    """Yield the queries in a split's `queries.arrow`."""
    return (Query(query_id, text) for query_id, text in MappedTable(path).rows())


class StoredCollection:
    """A collection on disk: `corpus`, and queries, judgements and given negatives by split.

    passages: the folder of the passages, or None; splits: the folders of the splits, by name.
    """

    def __init__(self, passages: Path | None, splits: Mapping[str, Path]) -> None:
        self._passages, self._splits = passages, dict(splits)

    @cached_property
    def corpus(self) -> StoredCorpus:
        """The passages. Raises DrkitError if they are missing."""
        if self._passages is None:
            raise DrkitError("this collection was opened without its passages; run the stage that writes them again")
        return StoredCorpus(self._passages)

    def splits(self) -> tuple[str, ...]:
        """The splits that have queries."""
        return tuple(split for split in SPLITS if split in self._splits)

    def queries(self, split: str) -> Iterator[Query]:
        """Yield the queries of a split; none if the split is missing."""
        return read_queries(self._splits[split] / QUERIES) if split in self._splits else iter(())

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Yield the judgements of a split; none if the split is missing."""
        return (Judgement(*row) for row in self._rows(split, JUDGEMENTS))

    def positives(self, split: str) -> dict[str, dict[str, int]]:
        """Return the judged positives: query id -> passage id -> relevance, in the order of the judgements."""
        found: dict[str, dict[str, int]] = {}
        for judgement in self.judgements(split):
            if judgement.relevance > 0:
                found.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.relevance
        return found

    def positive_indices(self, split: str) -> dict[str, NDArray[np.int64]]:
        """Return the judged positives by their indices in the corpus: query id -> indices i64[n]."""
        judged = self.positives(split)
        return {query: np.asarray(self.corpus.positions(list(docs))) for query, docs in judged.items()}

    def negatives(self, split: str) -> dict[str, list[str]]:
        """Return the collection's own negatives: query id -> passage ids, each once and never a judged positive.

        Negatives of the training file come first, in its order; then passages judged not relevant. Queries without
        negatives are left out.
        """
        positives = self.positives(split)
        found: dict[str, dict[str, None]] = {}
        for query_id, doc_id in self._candidate_negatives(split):
            if doc_id not in positives.get(query_id, ()):
                found.setdefault(query_id, {})[doc_id] = None
        return {query_id: list(doc_ids) for query_id, doc_ids in found.items()}

    def _candidate_negatives(self, split: str) -> Iterator[tuple[str, str]]:
        yield from ((query_id, doc_id) for query_id, doc_id in self._rows(split, NEGATIVES))
        yield from ((item.query_id, item.doc_id) for item in self.judgements(split) if item.relevance <= 0)

    def _rows(self, split: str, name: str) -> Iterator[tuple[Any, ...]]:
        path = self._splits[split] / name if split in self._splits else None
        return MappedTable(path).rows() if path is not None and path.is_file() else iter(())
