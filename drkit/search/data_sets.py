"""Search where each query belongs to one of several data sets: it is ranked among the passages of its own alone.

Of an exact index, a data set has the vectors at a range of positions, so its ranking is what an index of its own would
give. BM25 has an index of its own for each data set, with its own document frequencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.files import make_folder
from drkit.core.types import Passage
from drkit.data.data_set_names import data_set_of, ranges
from drkit.errors import DrkitError
from drkit.search.bm25 import Bm25Retriever
from drkit.search.fusion import Searcher, find_rankings
from drkit.search.index import FaissIndex
from drkit.search.rankings import Hits, Rankings
from drkit.search.retriever import Retriever
from drkit.search.text_encoder import Encoder


@frozen(eq=False)
class SeparateSearcher:
    """Searches with one searcher for each data set, by the ids of queries; `sets`: by name."""

    sets: Mapping[str, Searcher]

    def __len__(self) -> int:
        return sum(map(len, self.sets.values()))

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Raise DrkitError: a text alone does not say which data set it is asked of."""
        del texts, depth
        raise DrkitError(f"each data set is searched by itself; name one: {', '.join(self.sets)}")

    def rankings(self, query_ids: Sequence[str], texts: Sequence[str], depth: int) -> Rankings:
        """Return the best `depth` passages of texts, each among those of the data set that its id belongs to."""
        names = [data_set_of(query_id) for query_id in query_ids]
        if not names:
            return Rankings.of(())
        if unknown := next(
            (query for query, name in zip(query_ids, names, strict=True) if name not in self.sets), None
        ):
            raise DrkitError(
                f"the query {unknown[0]!r} belongs to none of the data sets {', '.join(self.sets)}, each of which is "
                f"searched by itself: give ids as NAME/ID, or name the data set to search"
            )
        starts = [row for row, name in enumerate(names) if not row or names[row - 1] != name]
        blocks = [slice(*ends) for ends in zip(starts, [*starts[1:], len(names)], strict=True)]
        found = (find_rankings(self.sets[names[own.start]], query_ids[own], texts[own], depth) for own in blocks)
        return Rankings.joined(list(found))


@frozen(eq=False)
class SeparateRetriever(SeparateSearcher):
    """Searches the passages of each data set with one encoder; encoder: with the prompts of no data set."""

    encoder: Encoder

    @classmethod
    def of(cls, retriever: Retriever, names: Sequence[str]) -> SeparateRetriever:
        """Return a retriever of each data set in an index of all of them, in the order of the names."""
        return cls({name: one_data_set(retriever, name, names) for name in names}, retriever.encoder)


def one_data_set(retriever: Retriever, name: str, names: Sequence[str]) -> Retriever:
    """Return a retriever of the passages of one data set, with its prompts; names: of all in the index, in order.

    Raises DrkitError for an approximate index, or a data set without passages.
    """
    index, encoder = retriever.index, retriever.encoder
    if isinstance(index, FaissIndex):
        raise DrkitError(f"an index of kind {index.kind!r} has no exact part for each data set; build a flat one")
    positions = ranges(names, len(index), index.doc_ids.__getitem__)[name]
    if not positions:
        raise DrkitError(f"the index has no passages of the data set {name!r}")
    reads = getattr(encoder, "for_data_set", None)
    return Retriever(reads(name) if reads else encoder, index.within(positions), part=retriever.part)


@frozen(eq=False)
class SeparateBm25(SeparateSearcher):
    """BM25 with an index of its own for each data set, all with the same settings."""

    sets: Mapping[str, Bm25Retriever]

    @classmethod
    def build(cls, passages: Mapping[str, Iterable[Passage]], **settings: Any) -> SeparateBm25:
        """Index the passages of each data set; settings: of `Bm25Retriever`."""
        return cls({name: Bm25Retriever(**settings).index(own) for name, own in passages.items()})

    @classmethod
    def variants(
        cls, passages: Mapping[str, Iterable[Passage]], parameters: Iterable[tuple[float, float]], **analysis: Any
    ) -> Iterator[SeparateBm25]:
        """Yield what `Bm25Retriever.variants` does, of all data sets."""
        streams = [
            Bm25Retriever.variants(own, pairs, **analysis)
            for own, pairs in zip(passages.values(), tee(parameters, len(passages)), strict=True)
        ]
        for found in zip(*streams, strict=True):
            yield cls(dict(zip(passages, found, strict=True)))

    @classmethod
    def load(cls, folder: Path, names: Sequence[str]) -> SeparateBm25:
        """Open the indexes in a folder. Raises DrkitError as `Bm25Retriever.load` does."""
        return cls({name: Bm25Retriever.load(folder / name) for name in names})

    def save(self, folder: Path) -> None:
        """Write each index into a folder named as the data set."""
        for name, one in self.sets.items():
            make_folder(folder / name)
            one.save(folder / name)

    def splitting(self, split_queries: str) -> SeparateBm25:
        """Return the same indexes, which treat identifiers in queries otherwise; see `Bm25Retriever`."""
        return SeparateBm25({name: one.splitting(split_queries) for name, one in self.sets.items()})
