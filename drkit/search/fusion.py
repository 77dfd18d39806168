"""Fuse two rankings of the same queries: a convex combination of scaled scores, or reciprocal ranks.

A hit that one ranking lacks gets that ranking's minimum. Fused hits are in trec_eval's order: by float32 score, ties by
document id in descending order. Sources: Cormack et al. 2009 (reciprocal rank fusion); Bruch et al. 2023, An Analysis
of Fusion Functions for Hybrid Retrieval (convex combinations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.checksums import check_unchanged
from drkit.core.files import read_json
from drkit.errors import DrkitError
from drkit.search.rankings import Hits, Rankings, RunRow, share_doc_ids

DEFAULT_WEIGHT = 0.5
DEFAULT_K = 60
FUSED_HITS = 1000
HYBRID_FOLDER, WEIGHT = "hybrid", "weight.json"
# Scale the scores f64[n] of one ranking, best first, n > 0; returns them, and the value of a missing hit.
Scale: TypeAlias = "Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], float]]"


class Searcher(Protocol):
    """Anything that finds passages for texts: `Bm25Retriever`, `Retriever`, `HybridRetriever`."""

    def __len__(self) -> int:
        """Number of passages."""

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text, best first."""


@runtime_checkable
class ArraySearcher(Protocol):
    """A `Searcher` that returns what it finds as arrays, as drkit's own do."""

    def rankings(self, query_ids: Sequence[str], texts: Sequence[str], depth: int) -> Rankings:
        """Return the best `depth` passages of texts with these ids."""


def find_rankings(searcher: Searcher, query_ids: Sequence[str], texts: Sequence[str], depth: int) -> Rankings:
    """Return the best `depth` passages of texts with these ids, found by a `Searcher`; drkit's own return arrays."""
    if isinstance(searcher, ArraySearcher):
        return searcher.rankings(query_ids, texts, depth)
    hits = searcher.search(texts, depth)
    return Rankings.of((query_id, one.pairs()) for query_id, one in zip(query_ids, hits, strict=True))


@frozen
class Fusion:
    """How a run fuses BM25 with a retriever: its name, its weight (`convex`), and how many hits of each are fused."""

    retriever: str
    weight: float
    depth: int


def read_fusion(run: str | Path) -> Fusion:
    """Return how a finished run fuses. Raises DrkitError if it does not, or its file is damaged."""
    path = Path(run) / HYBRID_FOLDER / WEIGHT
    check_unchanged(path)
    try:
        facts: Any = read_json(path, "")
        return Fusion(str(facts["retriever"]), float(facts["weight"]), int(facts["depth"]))
    except (DrkitError, KeyError, TypeError, ValueError):
        raise DrkitError(
            f"{run} has no hybrid system (missing or invalid {path}); give a finished run whose "
            f"recipe has evaluation.bm25 and evaluation.hybrid on"
        ) from None


@frozen(eq=False)
class AlignedHits:
    """The hits of one query in two rankings.

    documents: i32[n], their union, as rows of `ids` (an Arrow array in descending order of the ids in a run file).
    scores: f64[2,n], scaled, with the values of missing hits.
    """

    query_id: str
    documents: NDArray[np.int32]
    scores: NDArray[np.float64]
    ids: Any

    def best(
        self, weights: tuple[float, float], depth: int | None = None
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the documents and scores of the best `depth` hits (None: all) by the weighted sum of their scores."""
        # Not a matrix product, whose rounding, and so the order of near ties, depends on the machine.
        scores = (weights[0] * self.scores[0] + weights[1] * self.scores[1]).astype(np.float32)
        among = np.arange(len(scores))
        if depth is not None and depth < len(scores):
            among = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
        best = among[np.argsort(-scores[among], kind="stable")][:depth]
        return self.documents[best], scores[best]


def min_max(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Scale scores to 0 .. 1, all to 1 if they are equal; a missing hit gets 0.

    >>> min_max(np.array([9.0, 6.0, 5.0]))
    (array([1.  , 0.25, 0.  ]), 0.0)
    """
    span = scores[0] - scores[-1]
    return ((scores - scores[-1]) / span if span else np.ones_like(scores)), 0.0


def align(first: Iterable[RunRow], second: Iterable[RunRow], scale: Scale = min_max) -> Iterator[AlignedHits]:
    """Yield the hits of every query of two runs, with scaled scores; queries that only `second` has come last.

    A run: `Rankings`, or rows. A query that one run lacks has no hits in it: its scores are all 0.

    Raises DrkitError for a duplicate query in a run, or a duplicate document of a query.
    """
    one, two = share_doc_ids(Rankings.of(first).ordered(), Rankings.of(second).ordered())
    rows = {query_id: row for row, query_id in enumerate(two.query_ids)}
    for row, query_id in enumerate(one.query_ids):
        yield _align(query_id, one.row(row), two.row(rows.pop(query_id, None)), scale, one.doc_ids)
    for query_id, row in rows.items():
        yield _align(query_id, one.row(None), two.row(row), scale, one.doc_ids)


def convex(hits: Iterable[AlignedHits], weight: float = DEFAULT_WEIGHT, depth: int | None = None) -> Rankings:
    """Return rankings by the sum of both scores: `weight` times the second, 1 - `weight` times the first.

    Raises DrkitError for a weight outside 0 .. 1.

    >>> rows = align([("q", [("a", 9.0), ("b", 5.0)])], [("q", [("c", 3.0), ("b", 2.0), ("a", 1.0)])])
    >>> list(convex(rows, 0.25))
    [('q', [('a', 0.75), ('c', 0.25), ('b', 0.125)])]
    """
    if not 0 <= weight <= 1:
        raise DrkitError(f"the weight of the second ranking must be between 0 and 1, got {weight:g}")
    return fused(hits, (1 - weight, weight), depth)


def reciprocal_ranks(
    first: Iterable[RunRow], second: Iterable[RunRow], k: int = DEFAULT_K, depth: int | None = None
) -> Rankings:
    """Return rankings by the sum of 1 / (k + rank) over both rankings; a missing hit adds 0.

    Ranks count from 1, in trec_eval's order. Raises DrkitError for a negative k, and as `align` does.

    >>> list(reciprocal_ranks([("q", [("a", 9.0), ("b", 5.0)])], [("q", [("b", 0.8)])], k=1))
    [('q', [('b', 0.8333333134651184), ('a', 0.5)])]
    """
    if k < 0:
        raise DrkitError(f"k of reciprocal rank fusion must be at least 0, got {k}")
    return fused(align(first, second, lambda scores: (1 / (k + 1 + np.arange(len(scores))), 0.0)), (1, 1), depth)


def fused(hits: Iterable[AlignedHits], weights: tuple[float, float], depth: int | None = None) -> Rankings:
    """Return rankings of the best `depth` hits (None: all) of each query, by the weighted sum of their scores."""
    aligned = list(hits)
    ids = aligned[0].ids if aligned else Rankings.of(()).doc_ids
    return Rankings.at(ids, [one.query_id for one in aligned], (one.best(weights, depth) for one in aligned))


def _align(
    query_id: str,
    first: tuple[NDArray[np.int32], NDArray[np.float32]],
    second: tuple[NDArray[np.int32], NDArray[np.float32]],
    scale: Scale,
    ids: Any,
) -> AlignedHits:
    documents = np.union1d(first[0], second[0])
    scores = np.zeros((2, len(documents)))
    for own, (found, given) in zip(scores, (first, second), strict=True):
        if len(found):
            scaled, missing = scale(given.astype(np.float64))
            own[:] = missing
            own[np.searchsorted(documents, found)] = scaled
    return AlignedHits(query_id, documents, scores, ids)
