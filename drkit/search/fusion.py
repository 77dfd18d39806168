"""Fuse two rankings of the same queries: a convex combination of scaled scores, or reciprocal ranks.

A hit that one ranking lacks gets that ranking's minimum. Fused hits are in trec_eval's order: by float32 score, ties by
document id in descending order. Sources: Cormack et al. 2009 (reciprocal rank fusion); Bruch et al. 2023, An Analysis
of Fusion Functions for Hybrid Retrieval (convex combinations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.files import read_json
from drkit.data.qrels import encode_ids
from drkit.data.rows import batched
from drkit.errors import DrkitError
from drkit.search.rankings import Hits, RunRow, read_run, write_run

FusedRow: TypeAlias = "tuple[str, list[tuple[str, float]]]"
DEFAULT_WEIGHT = 0.5
DEFAULT_K = 60
FUSED_HITS = 1000
WEIGHT = "weight.json"
# Scale the scores f64[n] of one ranking, best first, n > 0; returns them, and the value of a missing hit.
Scale: TypeAlias = "Callable[[NDArray[np.float64]], tuple[NDArray[np.float64], float]]"


class Searcher(Protocol):
    """Anything that finds passages for texts: `Bm25Retriever`, `Retriever`, `HybridRetriever`."""

    def __len__(self) -> int:
        """Number of passages."""

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text, best first."""


@frozen(eq=False)
class AlignedHits:
    """The hits of one query in two rankings.

    doc_ids: their union, in descending order of the ids in a run file; scores: f64[2,n], scaled, with the values of
    missing hits.
    """

    query_id: str
    doc_ids: tuple[str, ...]
    scores: NDArray[np.float64]

    def fused(self, weights: tuple[float, float], depth: int | None = None) -> Hits:
        """Return the best `depth` hits (None: all) by the weighted sum of their scores."""
        # Not a matrix product, whose rounding, and so the order of near ties, depends on the machine.
        scores = (weights[0] * self.scores[0] + weights[1] * self.scores[1]).astype(np.float32)
        among = np.arange(len(scores))
        if depth is not None and depth < len(scores):
            among = np.flatnonzero(scores >= np.partition(scores, -depth)[-depth])
        best = among[np.argsort(-scores[among], kind="stable")][:depth]
        return Hits(tuple(self.doc_ids[i] for i in best), tuple(scores[best].tolist()))


def min_max(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Scale scores to 0 .. 1, all to 1 if they are equal; a missing hit gets 0.

    >>> min_max(np.array([9.0, 6.0, 5.0]))
    (array([1.  , 0.25, 0.  ]), 0.0)
    """
    span = scores[0] - scores[-1]
    return ((scores - scores[-1]) / span if span else np.ones_like(scores)), 0.0


def z_score(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Scale scores to mean 0 and standard deviation 1, all to 0 if they are equal; a missing hit gets the lowest.

    >>> z_score(np.array([3.0, 1.0]))
    (array([ 1., -1.]), -1.0)
    """
    centred = scores - scores.mean()
    scaled = centred / scores.std() if scores[0] != scores[-1] else np.zeros_like(scores)
    return scaled, float(scaled[-1])


SCALES: dict[str, Scale] = {"min-max": min_max, "z-score": z_score}


def align(first: Iterable[RunRow], second: Iterable[RunRow], scale: Scale = min_max) -> Iterator[AlignedHits]:
    """Yield the hits of every query of two runs, with scaled scores; queries that only `second` has come last.

    A query that one run lacks has no hits in it: its scores are all 0. Memory holds the rows of `second` that are read
    before their query's turn: none of two runs with the same order, all of it for a query that it lacks.

    Raises DrkitError for a duplicate query in a run, or a duplicate document of a query.
    """
    coming = _once_each(second)
    waiting: dict[str, Iterable[tuple[str, float]]] = {}
    for query_id, hits in _once_each(first):
        while query_id not in waiting and (row := next(coming, None)):
            waiting[row[0]] = row[1]
        yield _align(query_id, hits, waiting.pop(query_id, ()), scale)
    for query_id, hits in chain(waiting.items(), coming):
        yield _align(query_id, (), hits, scale)


def convex(hits: Iterable[AlignedHits], weight: float = DEFAULT_WEIGHT, depth: int | None = None) -> Iterator[FusedRow]:
    """Yield rows of a run by the sum of both scores: `weight` times the second, 1 - `weight` times the first.

    Raises DrkitError for a weight outside 0 .. 1.

    >>> rows = align([("q", [("a", 9.0), ("b", 5.0)])], [("q", [("c", 3.0), ("b", 2.0), ("a", 1.0)])])
    >>> list(convex(rows, 0.25))
    [('q', [('a', 0.75), ('c', 0.25), ('b', 0.125)])]
    """
    if not 0 <= weight <= 1:
        raise DrkitError(f"the weight of the second ranking must be between 0 and 1, got {weight:g}")
    return ((one.query_id, list(one.fused((1 - weight, weight), depth).pairs())) for one in hits)


def reciprocal_ranks(
    first: Iterable[RunRow], second: Iterable[RunRow], k: int = DEFAULT_K, depth: int | None = None
) -> Iterator[FusedRow]:
    """Yield rows of a run by the sum of 1 / (k + rank) over both rankings; a missing hit adds 0.

    Ranks count from 1, in trec_eval's order. Raises DrkitError for a negative k, and as `align` does.

    >>> list(reciprocal_ranks([("q", [("a", 9.0), ("b", 5.0)])], [("q", [("b", 0.8)])], k=1))
    [('q', [('b', 0.8333333134651184), ('a', 0.5)])]
    """
    if k < 0:
        raise DrkitError(f"k of reciprocal rank fusion must be at least 0, got {k}")
    rows = align(first, second, lambda scores: (1 / (k + 1 + np.arange(len(scores))), 0.0))
    return ((one.query_id, list(one.fused((1, 1), depth).pairs())) for one in rows)


def has_weight(run: str | Path) -> bool:
    """Return whether a run has a hybrid system."""
    return (Path(run) / "hybrid" / WEIGHT).is_file()


def stored_weight(run: str | Path) -> tuple[float, int]:
    """Return the weight that a run gives to its retriever, and how many hits of each ranking it fuses.

    Raises DrkitError if the run has no hybrid system, or its file is damaged.
    """
    path = Path(run) / "hybrid" / WEIGHT
    try:
        facts = read_json(path, "")
        return float(facts["weight"]), int(facts["depth"])
    except (DrkitError, KeyError, TypeError, ValueError):
        raise DrkitError(
            f"{run} has no hybrid system (missing or invalid {path}); give a finished run whose "
            f"recipe has evaluation.bm25 and evaluation.hybrid on"
        ) from None


@frozen(eq=False)
class HybridRetriever:
    """Searches with two retrievers over the same passages, such as BM25 and a dense one, and fuses their hits.

    weight: of the second one (`convex`); depth: hits of each that are scaled and fused, at least as many as requested.
    """

    first: Searcher
    second: Searcher
    weight: float = DEFAULT_WEIGHT
    depth: int = FUSED_HITS

    @classmethod
    def load(cls, run: str | Path, *, device: str = "cpu") -> HybridRetriever:
        """Load BM25 and the retriever of a finished run, with the weight of its row `hybrid`.

        Raises DrkitError if the run has no such row, or a folder is missing or cannot be read.
        """
        from drkit.search.bm25 import Bm25Retriever
        from drkit.search.index import Retriever

        weight, depth = stored_weight(run)
        dense = Retriever.load(run, device=device)
        return cls(Bm25Retriever.load(Path(run) / "bm25"), dense, weight, depth)

    def __len__(self) -> int:
        return len(self.second)

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text, by the weighted sum of both scaled scores.

        Raises DrkitError for an empty text.
        """
        found = [one.search(texts, max(depth, self.depth)) for one in (self.first, self.second)]
        weights = (1 - self.weight, self.weight)
        return [
            _align(text, one.pairs(), two.pairs(), min_max).fused(weights, depth)
            for text, one, two in zip(texts, *found, strict=True)
        ]

    def stream(self, texts: Iterable[str], depth: int, batch: int = 256) -> Iterator[Hits]:
        """Yield what `search` returns for any number of texts, a batch at a time."""
        for some in batched(texts, batch):
            yield from self.search(some, depth)


def _once_each(rows: Iterable[RunRow]) -> Iterator[RunRow]:
    seen: set[str] = set()
    for query_id, hits in rows:
        if query_id in seen:
            raise DrkitError(f"duplicate query {query_id!r} in a run; give all hits of a query in one row")
        seen.add(query_id)
        yield query_id, hits


def _align(
    query_id: str, first: Iterable[tuple[str, float]], second: Iterable[tuple[str, float]], scale: Scale
) -> AlignedHits:
    rankings = [tuple(zip(*hits, strict=True)) or ((), ()) for hits in (first, second)]
    names = list(dict.fromkeys(chain(*(doc_ids for doc_ids, _ in rankings))))
    written = encode_ids(names)
    if written is names:
        names.sort(reverse=True)
    else:
        names = [name for _, name in sorted(zip(written, names, strict=True), reverse=True)]
    rows = {doc_id: row for row, doc_id in enumerate(names)}
    scores = np.zeros((2, len(names)))
    for ranking, (doc_ids, given) in enumerate(rankings):
        if doc_ids:
            found = np.fromiter(map(rows.__getitem__, doc_ids), np.int64, len(doc_ids))
            scores[ranking] = _scaled(query_id, found, given, len(rows), scale)
    return AlignedHits(query_id, tuple(names), scores)


def _scaled(
    query_id: str, found: NDArray[np.int64], given: Sequence[float], count: int, scale: Scale
) -> NDArray[np.float64]:
    """Return the scaled scores of one ranking f64[count], with its hits' scores `given` at the rows `found` i64[n]."""
    if (np.bincount(found) > 1).any():
        raise DrkitError(f"query {query_id!r} has a duplicate document among its hits")
    single = np.array(given, dtype=np.float32).astype(np.float64)
    order = np.lexsort((found, -single))
    scaled, missing = scale(single[order])
    scores = np.full(count, missing)
    scores[found[order]] = scaled
    return scores


def fuse_files(
    first: Path, second: Path, output: Path, fuse: Callable[[Iterator[RunRow], Iterator[RunRow]], Iterator[FusedRow]]
) -> tuple[int, int]:
    """Write the fusion of two run files; returns the number of queries, and how many of them both files rank.

    fuse: for example `reciprocal_ranks`. Memory holds the second file.

    Raises DrkitError for a file that cannot be read (naming the line), or files without a common query.
    """
    ids: tuple[set[str], set[str]] = (set(), set())

    def rows() -> Iterator[FusedRow]:
        yield from fuse(_noted(first, ids[0]), _noted(second, ids[1]))
        if not ids[0] & ids[1]:  # before the file is moved into place
            raise DrkitError(
                f"{first} ({len(ids[0]):,} queries) and {second} ({len(ids[1]):,}) have no query in common; "
                f"give two rankings of the same queries"
            )

    write_run(output, rows(), tag="fused")
    return len(ids[0] | ids[1]), len(ids[0] & ids[1])


def _noted(path: Path, ids: set[str]) -> Iterator[RunRow]:
    """Yield the rows of a run file, and add their queries to `ids`."""
    for query_id, hits in read_run(path):
        ids.add(query_id)
        yield query_id, hits
