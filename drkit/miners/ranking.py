"""From hits to negatives: no judged positive, no missing hit, no passage twice, and counts of those."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from drkit.core.protocols import ScoringRetriever, VectorRetriever
from drkit.core.types import Mined, MiningRequest
from drkit.search.retrieve import Hits, batched

BATCH = 1024
MEMORY_MB = 64
# A hit as Python holds it: an id, a score, and their places in two tuples.
_BYTES = 160
# What faiss gives as the score of a hit that is none.
_LEAST = float(np.finfo(np.float32).min)
Find = Callable[[Sequence[str], int, Sequence[Sequence[str]]], tuple[Sequence[Any], Sequence[Sequence[float]]]]


@frozen
class Reach:
    """How deep is searched: up to `depth` negatives behind the `skip` best; `limit`: the most hits there can be.

    memory_mb: megabytes for the hits that are held at once; it sets how many queries are searched together (16 to
    1024), so never is anything of queries by passages held.
    """

    depth: int
    skip: int = 0
    limit: int | None = None
    memory_mb: int = MEMORY_MB

    @property
    def queries(self) -> int:
        """Queries that are searched together.

        >>> Reach(200).queries, Reach(10_000).queries
        (1024, 41)
        """
        return max(16, min(BATCH, self.memory_mb * 2**20 // ((self.depth + self.skip) * _BYTES)))

    def hits(self, requests: Sequence[MiningRequest]) -> int:
        """Hits to ask for: a positive may take a rank, so that many more."""
        wanted = self.depth + self.skip + max((len(r.positives) + len(r.excluded) for r in requests), default=0)
        return wanted if self.limit is None else min(wanted, self.limit)


def mine_by_search(requests: Iterable[MiningRequest], find: Find, reach: Reach) -> Iterator[Mined]:
    """The negatives of each request among what `find` finds, in the requests' order.

    find: (texts, how many hits, each text's positives) -> hits as (doc_ids, scores), and the positives' scores (NaN:
    it has none). A query without text gets none.
    """
    for batch in batched(requests, reach.queries):
        asked = [request for request in batch if request.text.strip()]
        positives = [sorted(request.positives) for request in asked]
        hits, scores = find([request.text for request in asked], reach.hits(asked), positives)
        found = iter(zip(hits, positives, scores, strict=True))
        for request in batch:
            if not request.text.strip():
                yield Mined(request.query_id, (), (), dropped={"empty-query": 1})
                continue
            own, ids, given = next(found)
            known = {name: score for name, score in zip(ids, given, strict=True) if not math.isnan(score)}
            yield negatives_of(request, own, reach.depth, skip=reach.skip, positive_scores=known)


def negatives_of(
    request: MiningRequest, hits: Any, depth: int, *, skip: int = 0, positive_scores: dict[str, float] | None = None
) -> Mined:
    """The first `depth` hits that may be negatives and are none of the `skip` best of those.

    What stands before the last of them and is no negative is counted, so that counts depend on this query alone.

    >>> request = MiningRequest("q", "text", frozenset({"a"}))
    >>> negatives_of(request, (("a", "b", "c", "d"), (4.0, 3.0, 2.0, 1.0)), 1, skip=1)
    Mined(query_id='q', doc_ids=('c',), scores=(2.0,), positive_scores={}, dropped={'judged-positive': 1, 'skipped': 1})
    """
    kept: dict[str, float] = {}
    skipped: set[str] = set()
    dropped: Counter[str] = Counter()
    for doc_id, score in zip(*hits, strict=True):
        if len(kept) == depth:
            break
        if _is_missing(doc_id, score):
            dropped["missing"] += 1
        elif doc_id in request.positives:
            dropped["judged-positive"] += 1
        elif doc_id in request.excluded:
            dropped["own-passage"] += 1
        elif doc_id in kept or doc_id in skipped:
            dropped["repeated"] += 1
        elif len(skipped) < skip:
            skipped.add(doc_id)
            dropped["skipped"] += 1
        else:
            kept[doc_id] = float(score)
    return Mined(request.query_id, tuple(kept), tuple(kept.values()), positive_scores or {}, dict(dropped))


def scorer(retriever: Any) -> Find:
    """`find` for any retriever: it searches, and scores positives where it can; queries are encoded once."""
    if isinstance(retriever, VectorRetriever) and isinstance(retriever.index, ScoringRetriever):
        encoder, index = retriever.encoder, retriever.index
        return lambda texts, depth, positives: _with_vectors(encoder, index, texts, depth, positives)

    def find(texts: Sequence[str], depth: int, positives: Sequence[Sequence[str]]) -> tuple[Any, Any]:
        if not texts:
            return [], []
        hits = retriever.search(texts, depth)
        if isinstance(retriever, ScoringRetriever):
            return hits, retriever.score(texts, positives)
        return hits, [[math.nan] * len(ids) for ids in positives]

    return find


def _with_vectors(
    encoder: Any, index: Any, texts: Sequence[str], depth: int, positives: Sequence[Sequence[str]]
) -> tuple[Sequence[Hits], Sequence[Sequence[float]]]:
    if not texts:
        return [], []
    vectors = encoder.encode_queries(texts)
    return index.search(vectors, depth), index.score(vectors, positives)


def _is_missing(doc_id: Any, score: Any) -> bool:
    return doc_id is None or doc_id in ("", -1) or not math.isfinite(score) or score <= _LEAST
