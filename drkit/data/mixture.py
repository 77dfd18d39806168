"""The texts of several collections, as one collection without queries, for pre-training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from drkit.core.protocols import Collection
from drkit.core.types import Judgement, Passage, Query


class Mixture:
    """The run's own passages, then those of further collections, whose ids begin with `NAME/`.

    counts: the number of passages of each that have been read.
    """

    name = "mixture"

    def __init__(self, own: Iterable[Passage], others: Mapping[str, Collection]) -> None:
        self._own, self._others = own, others
        self.counts: dict[str, int] = {}

    def passages(self) -> Iterator[Passage]:
        """Yield the collection's own passages, then those of the others, with ids NAME/ID."""
        yield from self._counted(OWN, self._own)
        for name, collection in self._others.items():
            renamed = (attrs.evolve(one, doc_id=f"{name}/{one.doc_id}") for one in collection.passages())
            yield from self._counted(name, renamed)

    def _counted(self, name: str, passages: Iterable[Passage]) -> Iterator[Passage]:
        self.counts[name] = 0
        for passage in passages:
            self.counts[name] += 1
            yield passage

    def splits(self) -> tuple[str, ...]:
        """Return none: pre-training reads no queries."""
        return ()

    def queries(self, _split: str) -> Iterator[Query]:
        """Yield none."""
        return iter(())

    def judgements(self, _split: str) -> Iterator[Judgement]:
        """Yield none."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return the facts of each further collection, by name."""
        return {name: dict(collection.describe()) for name, collection in self._others.items()}


# The name of the run's own collection among those of a mixture.
OWN = "collection"
