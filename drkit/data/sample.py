"""A sample of a collection's passages: those that are judged, and a random rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from drkit.core.protocols import Collection, KeepsSettings, LocatesRows
from drkit.core.types import Judgement, Passage, Query


class PassageSample:
    """A collection of which only `count` passages are read, and all queries.

    All judged passages are kept, even if there are more of them; the rest is drawn at random, by the seed. Negatives
    and scores that come with training rows are left out.
    """

    def __init__(self, collection: Collection, count: int, *, seed: int) -> None:
        self._collection, self._count, self._seed = collection, count, seed
        self._rows: list[int] = []
        self.name = collection.name
        self.config = collection.config if isinstance(collection, KeepsSettings) else None

    def passages(self) -> Iterator[Passage]:
        """Yield the sampled passages, in the order of the collection, which is read twice."""
        judged = {one.doc_id for split in self.splits() for one in self.judgements(split)}
        is_judged = np.array([passage.doc_id in judged for passage in self._collection.passages()], dtype=bool)
        others = np.flatnonzero(~is_judged)
        wanted = min(max(self._count - int(is_judged.sum()), 0), len(others))
        drawn = np.random.default_rng(self._seed).permutation(others)[:wanted]
        self._rows = sorted([*np.flatnonzero(is_judged).tolist(), *drawn.tolist()])
        kept = {*self._rows}
        yield from (passage for row, passage in enumerate(self._collection.passages()) if row in kept)

    def splits(self) -> tuple[str, ...]:
        """Return the splits of the collection; a sample has them all."""
        return tuple(self._collection.splits())

    def queries(self, split: str) -> Iterator[Query]:
        """Yield all queries of a split: only passages are sampled."""
        return iter(self._collection.queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Yield all judgements of a split: judged passages are always in the sample."""
        return iter(self._collection.judgements(split))

    def describe(self) -> Mapping[str, Any]:
        """Return the facts of the collection."""
        return self._collection.describe()

    def locate(self, table: str, split: str, row: int) -> str:
        """Return `file:line` of a row, as the collection does."""
        own = self._rows[row] if table == "passages" and self._rows else row
        if isinstance(self._collection, LocatesRows):
            return self._collection.locate(table, split, own)
        return f"{split} {table} row {own + 1}".strip()
