"""Sources of hard negatives that search with BM25 and a dense retriever: in turns, or by the sum of their scores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, tee, zip_longest
from pathlib import Path
from typing import Any

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.miners.sources import MEMORY_MB, Bm25Miner, DenseMiner, SearchLimits, is_missing, mine_by_search
from drkit.miners.specs import Bm25Config, DenseConfig, HybridConfig, MixedConfig
from drkit.search.fusion import FUSED_HITS, align, fused


class _Bm25AndDense:
    """BM25 and `context.retriever` over the same passages; BM25's index can be saved, the retriever has its own."""

    def __init__(self, config: HybridConfig | MixedConfig, context: BuildContext | None = None) -> None:
        self.depth = config.depth
        self._bm25, self._dense = Bm25Miner(Bm25Config()), DenseMiner(DenseConfig(), context)

    def index(self, corpus: Corpus) -> None:
        """Index the passages for BM25; the retriever already has its index."""
        self._bm25.index(corpus)
        self._dense.index(corpus)

    def save_index(self, folder: Path) -> None:
        """Write BM25's index into a folder. Raises DrkitError before `index`."""
        self._bm25.save_index(folder)

    def load_index(self, folder: Path, corpus: Corpus) -> None:
        """Open BM25's saved index. Raises DrkitError if it is missing or cannot be read."""
        self._bm25.load_index(folder, corpus)
        self._dense.index(corpus)


class MixedMiner(_Bm25AndDense):
    """Mines the top-ranked passages of BM25 and of `context.retriever` in turns, each passage once.

    Scores are negated ranks, because those of the two cannot be compared; positives are not scored. Memory: that of
    both. Source: Wang et al. 2022, with BM25 as one of the two retrievers.
    """

    def queries_per_batch(self, depth: int) -> int:
        """Return how many queries the retriever encodes and searches together."""
        return self._dense.queries_per_batch(depth)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives for each request, BM25's first. Raises DrkitError before `index`."""
        first, second = tee(requests)
        for found in zip(self._bm25.mine(first, depth), self._dense.mine(second, depth), strict=True):
            turns = chain.from_iterable(zip_longest(*(mined.doc_ids for mined in found)))
            doc_ids = tuple(dict.fromkeys(doc_id for doc_id in turns if doc_id is not None))[:depth]
            dropped = sum((Counter(mined.dropped) for mined in found), Counter())
            scores = tuple(-float(rank) for rank, _ in enumerate(doc_ids, start=1))
            yield Mined(found[0].query_id, doc_ids, scores, dropped=dict(dropped))


class HybridMiner(_Bm25AndDense):
    """Mines the top-ranked passages of BM25 and `context.retriever` together, by the weighted sum of their scores.

    Both scores are scaled to 0 .. 1 per query (`convex`), so a score is between 0 and 1; positives among the hits of
    either have one, too. Memory: that of both, and their hits. Source: Bruch et al. 2023.
    """

    def __init__(self, config: HybridConfig, context: BuildContext | None = None) -> None:
        super().__init__(config, context)
        self._weights = (1 - config.weight, config.weight)

    def queries_per_batch(self, depth: int) -> int:
        """Return how many queries are encoded and searched together."""
        return self._limits(depth).queries_per_batch

    def _limits(self, depth: int) -> SearchLimits:
        return SearchLimits(depth, memory_mb=max(MEMORY_MB * depth // (2 * _fused(depth)), 1))

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives for each request, best first. Raises DrkitError before `index`."""

        def find(texts: Sequence[str], _: int, positives: Sequence[Sequence[str]]) -> tuple[Any, Any]:
            words, vectors = (_rows(one.retriever.search(texts, _fused(depth))) for one in (self._bm25, self._dense))
            found = fused(align(words, vectors), self._weights).hits()
            scores = [dict(hits.pairs()) for hits in found]
            return found, [[own.get(p, math.nan) for p in ids] for own, ids in zip(scores, positives, strict=True)]

        yield from mine_by_search(requests, find, self._limits(depth))


def _fused(depth: int) -> int:
    """Return how many hits of each ranking are scaled and fused."""
    return max(FUSED_HITS, 2 * depth)


def _rows(found: Sequence[Any]) -> Iterator[tuple[str, Iterable[tuple[str, float]]]]:
    """Yield the hits of each query, with its number as its id."""
    return ((str(number), _scores(hits).items()) for number, hits in enumerate(found))


def _scores(hits: Any) -> dict[str, float]:
    """Return the scores of a ranking, without empty slots; a passage that occurs twice has its first."""
    best_last = reversed(list(zip(*hits, strict=True)))
    return {doc_id: float(score) for doc_id, score in best_last if not is_missing(doc_id, score)}
