"""Several labelled data sets as one collection: their ids become NAME/ID, and each keeps its own passages and queries.

The passages of a data set are stored next to each other, in the order of the data sets, so that a data set is a range
of positions, and a query belongs to the data set whose name its id begins with (`drkit.data.data_set_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.protocols import (
    CarriesNegatives,
    CarriesScores,
    Collection,
    EstimatesSize,
    ReadsAhead,
)
from drkit.core.registry import registry_of
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, CollectionSize, Judgement, Passage, Query
from drkit.data.collection import drops_unknown_ids
from drkit.data.data_set_names import data_set_id, ranges
from drkit.data.preview import reading_notes
from drkit.data.specs import DataSetsConfig
from drkit.data.splits import SPLITS
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.data.corpus import StoredCorpus


class DataSets:
    """The passages, queries and judgements of several collections, each in its order, with the ids NAME/ID.

    Data sets may lack a split that others have, and may have the same ids as others. If any of them drops judgements
    with unknown ids, those of all are dropped.
    """

    name = "data-sets"

    def __init__(self, config: DataSetsConfig, context: BuildContext | None = None) -> None:
        self.sets: dict[str, Collection] = {}
        for name, chosen in config.sets.items():
            try:
                self.sets[name] = registry_of(context).build(Kind.COLLECTION, chosen.use, chosen.config, context)
            except DrkitError as error:
                raise DrkitError(f"data set {name!r}: {error} @ collections.{name}") from None
        dropping = any(map(drops_unknown_ids, self.sets.values()))
        self.config = SimpleNamespace(unknown_judgements="drop" if dropping else "refuse")

    def passages(self) -> Iterator[Passage]:
        """Yield the passages of each data set."""
        for name, own in self.sets.items():
            yield from (attrs.evolve(one, doc_id=data_set_id(name, one.doc_id)) for one in own.passages())

    def splits(self) -> tuple[str, ...]:
        """Return the splits that any data set has."""
        found = {split for own in self.sets.values() for split in own.splits()}
        return tuple(split for split in SPLITS if split in found)

    def _with(self, split: str) -> Iterator[tuple[str, Any]]:
        return ((name, own) for name, own in self.sets.items() if split in own.splits())

    def queries(self, split: str) -> Iterator[Query]:
        """Yield the queries of a split of each data set that has it."""
        for name, own in self._with(split):
            yield from (attrs.evolve(one, query_id=data_set_id(name, one.query_id)) for one in own.queries(split))

    def judgements(self, split: str) -> Iterator[Judgement]:
        """Yield the judgements of a split of each data set that has it."""
        for name, own in self._with(split):
            for one in own.judgements(split):
                ids = {"query_id": data_set_id(name, one.query_id), "doc_id": data_set_id(name, one.doc_id)}
                yield attrs.evolve(one, **ids)

    def negatives(self, split: str) -> Iterator[tuple[str, str]]:
        """Yield (query id, passage id) of the negatives that come with data sets."""
        for name, own in self._with(split):
            if isinstance(own, CarriesNegatives):
                yield from ((data_set_id(name, query), data_set_id(name, doc)) for query, doc in own.negatives(split))

    def teacher_scores(self, split: str) -> Iterator[tuple[str, str, float]]:
        """Yield (query id, passage id, score) of the teacher's scores that come with data sets."""
        for name, own in self._with(split):
            if isinstance(own, CarriesScores):
                for query, doc, score in own.teacher_scores(split):
                    yield data_set_id(name, query), data_set_id(name, doc), score

    def describe(self) -> Mapping[str, Any]:
        """Return the facts of each data set, by name."""
        return {"collection": self.name, "sets": {name: dict(own.describe()) for name, own in self.sets.items()}}

    def notes(self) -> Iterator[str]:
        """Yield how each data set is read. Raises DrkitError, with its name, for one that cannot be stored."""
        for name, own in self.sets.items():
            try:
                yield from (f"{name}: {note}" for note in reading_notes(own))
            except DrkitError as error:
                raise DrkitError(f"data set {name!r}: {error} @ collections.{name}") from None

    def size(self) -> CollectionSize | None:
        """Estimate the size of all data sets together; None if one cannot be estimated."""
        sizes = {name: own.size() for name, own in self.sets.items() if isinstance(own, EstimatesSize)}
        known = {name: one for name, one in sizes.items() if one is not None}
        if len(known) < len(self.sets):
            return None
        count = sum(one.passages for one in known.values())
        characters = sum(one.passages * (one.id_length + len(name) + 1) for name, one in known.items())
        return CollectionSize(
            passages=count,
            queries={split: sum(one.queries.get(split, 0) for one in known.values()) for split in self.splits()},
            passage_lengths=[
                length
                for one in known.values()
                for length in _in_proportion(one.passage_lengths, one.passages / max(count, 1))
            ],
            query_lengths=list(chain.from_iterable(one.query_lengths for one in known.values())),
            id_length=characters / max(count, 1),
        )

    def read_ahead(self, on_progress: Callable[[int, int], None]) -> None:
        """Read the sources of those data sets that do so before their first row."""
        for own in self.sets.values():
            if isinstance(own, ReadsAhead):
                own.read_ahead(on_progress)

    def locate(self, table: str, split: str, row: int) -> str:
        """Return where row `row` of a table was read, as its own data set says it."""
        for name, own in self.sets.items():
            rows = self._rows(own, table, split)
            if row < rows:
                return _located(name, own, table, split, row)
            row -= rows
        return f"{split} {table} row {row + 1}".strip()

    def _rows(self, own: Any, table: str, split: str) -> int:
        """Count the rows of a table in one data set, which is read again."""
        if table == "passages":
            return sum(1 for _ in own.passages())
        if split not in own.splits() or (table == "negatives" and not isinstance(own, CarriesNegatives)):
            return 0
        return sum(1 for _ in getattr(own, table)(split))


# Lengths of passages that the size of all data sets is estimated from.
_LENGTHS = 5000


def _in_proportion(lengths: Sequence[int], share: float) -> Sequence[int]:
    """Return lengths of a data set's passages, as many as its share of all passages, spread over those known."""
    wanted = max(1, round(_LENGTHS * share))
    step = max(1, len(lengths) // wanted)
    return lengths[::step] if step > 1 else lengths


def _located(name: str, own: Any, table: str, split: str, row: int) -> str:
    from drkit.data.writing import locator

    return f"{name}: {locator(own)(table, split, row)}"


@frozen
class PassageRange:
    """The passages of one data set, as a `Corpus` of its own; ids stay NAME/ID, indices start at 0."""

    corpus: StoredCorpus
    positions: range

    @classmethod
    def of(cls, corpus: StoredCorpus, name: str, names: Sequence[str]) -> PassageRange:
        """Return the passages of a data set in a corpus of several; names: of all data sets, in their order."""
        return cls(corpus, ranges(names, len(corpus), lambda position: corpus.ids_at([position])[0])[name])

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[Passage]:
        for start in range(self.positions.start, self.positions.stop, _LENGTHS):
            yield from self.corpus.at(range(start, min(start + _LENGTHS, self.positions.stop)))

    def get_many(self, doc_ids: Sequence[str]) -> list[Passage]:
        """Return the passages with these ids, in this order. Raises DrkitError for an unknown id."""
        return self.corpus.get_many(doc_ids)

    def find(self, doc_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the index i64[n] of each id among these passages, or -1 if it is none of them."""
        found = self.corpus.find(doc_ids)
        inside = (found >= self.positions.start) & (found < self.positions.stop)
        return np.where(inside, found - self.positions.start, -1)
