"""Sources of hard negatives: BM25, a dense retriever, random passages, a TREC run file, or the collection's own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.draws import Draws
from drkit.core.files import local_path
from drkit.core.protocols import Corpus, CutsDocuments, ScoringRetriever, TextRetriever, VectorRetriever
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.rows import batched
from drkit.errors import DrkitError
from drkit.miners.chain import add_dropped, are_known
from drkit.miners.specs import (
    Bm25Config,
    DenseConfig,
    GivenConfig,
    RandomConfig,
    RefreshConfig,
    RunFileConfig,
)
from drkit.search.bm25 import Bm25Retriever
from drkit.search.rankings import Rankings
from drkit.search.run_files import read_run

MAX_QUERIES = 1024
MEMORY_MB = 64
# A hit as Python holds it: an id, a score, and their entries in two tuples.
_BYTES_PER_HIT = 160
# The score that faiss gives to a missing hit.
_MISSING_SCORE = float(np.finfo(np.float32).min)
FindHits = Callable[[Sequence[str], int, Sequence[Sequence[str]]], tuple[Sequence[Any], Sequence[Sequence[float]]]]


class Bm25Miner:
    """Mines the top-ranked passages of BM25 that are not judged positives of the query.

    Returns fewer than requested if fewer passages share a word with the query, and none for an empty query.
    Memory: the index, and one score per passage. Source: Robertson and Zaragoza 2009.
    """

    def __init__(self, config: Bm25Config, _context: BuildContext | None = None) -> None:
        self.config, self.depth = config, config.depth
        self._retriever: Bm25Retriever | None = None

    def index(self, corpus: Corpus) -> None:
        """Index the passages, streamed."""
        config = self.config
        self._retriever = Bm25Retriever(
            k1=config.k1,
            b=config.b,
            language=config.language,
            query_language=config.query_language,
            split_queries=config.split_queries,
        ).index(corpus)

    @property
    def retriever(self) -> Bm25Retriever:
        """The index to search. Raises DrkitError before `index`."""
        if self._retriever is None:
            raise _not_indexed("bm25")
        return self._retriever

    def save_index(self, folder: Path) -> None:
        """Write the index into a folder. Raises DrkitError before `index`."""
        self.retriever.save(folder)

    def load_index(self, folder: Path, corpus: Corpus) -> None:  # noqa: ARG002
        """Open a saved index, memory-mapped. Raises DrkitError if it is missing or cannot be read."""
        self._retriever = Bm25Retriever.load(folder)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives for each request, best first. Raises DrkitError before `index`."""
        yield from mine_by_search(requests, hit_finder(self.retriever), SearchLimits(depth))


class DenseMiner:
    """Mines the top-ranked passages of `context.retriever` that are not judged positives of the query.

    The retriever is any object with `search(texts, depth)` that returns (doc_ids, scores) for each text, best first,
    over the corpus that is mined. Once the positives are removed, the `config.skip` best hits are left out. If the
    retriever has `score(texts, doc_ids)`, the positives are scored too. Memory: `config.memory_mb` of hits, and what
    the retriever needs for that many queries; never a matrix of queries by passages. Source: Zhan et al. 2021.
    """

    def __init__(self, config: DenseConfig | RefreshConfig, context: BuildContext | None = None) -> None:
        if context is None or context.retriever is None:
            raise DrkitError("the dense miner needs a retriever to search with; pass BuildContext(retriever=...)")
        self.config, self.depth, self.retriever = config, config.depth, context.retriever
        self._size: int | None = None

    def index(self, corpus: Corpus) -> None:
        """Record the corpus's size; the retriever already has its index."""
        self._size = len(corpus)

    def queries_per_batch(self, depth: int) -> int:
        """Return how many queries are encoded and searched together."""
        return self._limits(depth).queries_per_batch

    def _limits(self, depth: int) -> SearchLimits:
        return SearchLimits(depth, self.config.skip, self._size, self.config.memory_mb)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives for each request, best first. Raises DrkitError before `index`."""
        if self._size is None:
            raise _not_indexed("dense")
        yield from mine_by_search(requests, hit_finder(self.retriever), self._limits(depth))


class RandomMiner:
    """Draws passages uniformly and without repetition, never a judged positive; all scores are 0.

    What is drawn for a query depends on the seed, the query's id and the corpus, not on other queries.
    """

    def __init__(self, config: RandomConfig, context: BuildContext | None = None) -> None:
        self.depth = config.depth
        self._seed = context.seed if context is not None else 42
        self._ids: list[str] | None = None

    def index(self, corpus: Corpus) -> None:
        """Record the passages' ids."""
        self._ids = [passage.doc_id for passage in corpus]

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield `depth` negatives for each request, or as many as the corpus has. Raises DrkitError before `index`."""
        if self._ids is None:
            raise _not_indexed("random")
        for request in requests:
            drawn = tuple(self._draw(request, self._ids, depth))
            yield Mined(request.query_id, drawn, (0.0,) * len(drawn))

    def _draw(self, request: MiningRequest, ids: list[str], depth: int) -> list[str]:
        digest = blake2b(request.query_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        draws = Draws(self._seed, 0, [int.from_bytes(digest, "little", signed=True)])
        excluded = request.positives | request.excluded
        needed = depth + len(excluded)
        # Drawing again on a repetition is fast only while repetitions are rare.
        if needed * 2 >= len(ids):
            indices = np.argsort(draws.integers(2**53, len(ids))[0], kind="stable")
        else:
            indices = _distinct(draws, len(ids), needed)
        return [ids[i] for i in indices.tolist() if ids[i] not in excluded][:depth]


def _distinct(draws: Draws, size: int, count: int) -> NDArray[np.int64]:
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        more = np.concatenate([drawn, draws.integers(size, 2 * count)[0]])
        _, first = np.unique(more, return_index=True)
        drawn = more[np.sort(first)]
    return drawn[:count]


class GivenMiner:
    """Returns a query's own negatives, in the order of the file; all scores are 0, as the file has none.

    They are `context.negatives`, passage ids by query id (`StoredCollection.negatives(split)`). Ids that the corpus
    lacks are counted as `unknown-id`. Queries without negatives of their own get none.
    """

    def __init__(self, config: GivenConfig, context: BuildContext | None = None) -> None:
        self.depth = config.depth
        self._given = context.negatives if context is not None else None
        self._corpus: Corpus | None = None

    def index(self, corpus: Corpus) -> None:
        """Record which ids the corpus has. Raises DrkitError if the collection comes without negatives."""
        if not self._given:
            raise DrkitError(
                "the collection comes without negatives for these queries; use another source, such as bm25 or dense"
            )
        self._corpus = corpus

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives for each request. Raises DrkitError before `index`."""
        if self._corpus is None or self._given is None:
            raise _not_indexed("given")
        for request in requests:
            given = list(self._given.get(request.query_id, ()))
            known = [doc_id for doc_id, found in zip(given, are_known(self._corpus, given), strict=True) if found]
            negatives = pick_negatives(request, (known, [0.0] * len(known)), depth)
            yield add_dropped(negatives, "unknown-id", len(given) - len(known))


class RunFileMiner:
    """Mines the top-ranked passages of a TREC run file that are not judged positives of the query.

    Ids that the corpus lacks are left out and counted as `unknown-id`; queries that the file lacks get no negatives
    (`query-not-in-run`, counted per query). Memory: 8 bytes for each hit of a TREC run.
    """

    def __init__(self, config: RunFileConfig, _context: BuildContext | None = None) -> None:
        if not config.path:
            raise DrkitError("the run-file miner needs a file; write run-file:PATH, or set `path`")
        self.config, self.depth = config, config.depth
        self._rankings: Rankings | None = None
        self._rows: dict[str, int] = {}
        self._corpus: Corpus | None = None

    def index(self, corpus: Corpus) -> None:
        """Read the file. Raises DrkitError if it is empty, and with file and line if it is not a run file."""
        self._rankings, self._corpus = read_run(local_path(self.config.path)).ordered(), corpus
        if not self._rankings.ranked:
            raise DrkitError(f"{self.config.path} is empty: expected a line per retrieved passage")
        self._rows = {query_id: row for row, query_id in enumerate(self._rankings.query_ids)}

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Yield up to `depth` negatives for each request, best first. Raises DrkitError before `index`."""
        if self._rankings is None or self._corpus is None:
            raise _not_indexed("run-file")
        for request in requests:
            yield self._answer(request, self._rankings, self._corpus, depth)

    def _answer(self, request: MiningRequest, rankings: Rankings, corpus: Corpus, depth: int) -> Mined:
        row = self._rows.get(request.query_id)
        if row is None:
            return Mined(request.query_id, (), (), dropped={"query-not-in-run": 1})
        ranking = dict(rankings.pairs(row))
        known = are_known(corpus, list(ranking))
        hits = {doc_id: score for (doc_id, score), found in zip(ranking.items(), known, strict=True) if found}
        positives = {doc_id: ranking[doc_id] for doc_id in sorted(request.positives) if doc_id in ranking}
        negatives = pick_negatives(request, (tuple(hits), tuple(hits.values())), depth, positive_scores=positives)
        return add_dropped(negatives, "unknown-id", len(ranking) - len(hits))


def _not_indexed(miner: str) -> DrkitError:
    return DrkitError(f"the {miner} miner has no corpus yet; call index(corpus) before mine(requests, depth)")


@frozen
class SearchLimits:
    """Limits of a search for negatives: up to `depth` negatives after the `skip` best, among at most `limit` hits.

    memory_mb: megabytes for the hits that are held at once. It sets how many queries are searched together (16 to
    1024), so memory never grows with queries times passages.
    """

    depth: int
    skip: int = 0
    limit: int | None = None
    memory_mb: int = MEMORY_MB

    @property
    def queries_per_batch(self) -> int:
        """Number of queries that are searched together.

        >>> SearchLimits(200).queries_per_batch, SearchLimits(10_000).queries_per_batch
        (1024, 41)
        """
        return max(16, min(MAX_QUERIES, self.memory_mb * 2**20 // ((self.depth + self.skip) * _BYTES_PER_HIT)))

    def hits_to_request(self, requests: Sequence[MiningRequest]) -> int:
        """Return how many hits to request: each positive or excluded passage may take one rank."""
        most_excluded = max((len(r.positives) + len(r.excluded) for r in requests), default=0)
        hits = self.depth + self.skip + most_excluded
        return hits if self.limit is None else min(hits, self.limit)


def mine_by_search(requests: Iterable[MiningRequest], find: FindHits, limits: SearchLimits) -> Iterator[Mined]:
    """Yield the negatives of each request among the hits that `find` returns, in the order of the requests.

    find: takes (texts, number of hits, ids of each text's positives), and returns the hits as (doc_ids, scores) and the
    scores of the positives (NaN: not scored). Queries without text get no negatives.
    """
    for batch in batched(requests, limits.queries_per_batch):
        searched = [request for request in batch if request.text.strip()]
        positives = [sorted(request.positives) for request in searched]
        hits, scores = find([request.text for request in searched], limits.hits_to_request(searched), positives)
        found = iter(zip(hits, positives, scores, strict=True))
        for request in batch:
            if not request.text.strip():
                yield Mined(request.query_id, (), (), dropped={"empty-query": 1})
                continue
            own_hits, ids, given = next(found)
            scored = {doc_id: score for doc_id, score in zip(ids, given, strict=True) if not math.isnan(score)}
            yield pick_negatives(request, own_hits, limits.depth, skip=limits.skip, positive_scores=scored)


def pick_negatives(
    request: MiningRequest, hits: Any, depth: int, *, skip: int = 0, positive_scores: dict[str, float] | None = None
) -> Mined:
    """Return the first `depth` hits that may serve as negatives, after skipping the `skip` best of them.

    Dropped hits are counted up to the last negative, so that the counts depend on this query alone.

    >>> request = MiningRequest("q", "text", frozenset({"a"}))
    >>> pick_negatives(request, (("a", "b", "c", "d"), (4.0, 3.0, 2.0, 1.0)), 1, skip=1)
    Mined(query_id='q', doc_ids=('c',), scores=(2.0,), positive_scores={}, dropped={'judged-positive': 1, 'skipped': 1})
    """
    kept: dict[str, float] = {}
    skipped: set[str] = set()
    dropped: Counter[str] = Counter()
    for doc_id, score in zip(*hits, strict=True):
        if len(kept) == depth:
            break
        if is_missing(doc_id, score):
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


def is_missing(doc_id: Any, score: Any) -> bool:
    """Return whether a hit is an empty slot, as faiss fills up a ranking with."""
    return doc_id is None or doc_id in ("", -1) or not math.isfinite(score) or score <= _MISSING_SCORE


def hit_finder(retriever: TextRetriever) -> FindHits:
    """Return a `find` function (see `mine_by_search`) for any retriever.

    It scores positives if the retriever can, and encodes each query only once, unless the index holds passages of
    documents.
    """
    has_documents = isinstance(retriever, CutsDocuments) and (retriever.passages_per_document or 1) > 1
    if isinstance(retriever, VectorRetriever) and isinstance(retriever.index, ScoringRetriever) and not has_documents:
        encoder: Any = retriever.encoder
        index: Any = retriever.index

        def find_by_vectors(texts: Sequence[str], depth: int, positives: Sequence[Sequence[str]]) -> tuple[Any, Any]:
            if not texts:
                return [], []
            vectors = encoder.encode_queries(texts)
            return index.search(vectors, depth), index.score(vectors, positives)

        return find_by_vectors

    search = retriever.search
    scorer = retriever if isinstance(retriever, ScoringRetriever) else None

    def find(texts: Sequence[str], depth: int, positives: Sequence[Sequence[str]]) -> tuple[Any, Any]:
        if not texts:
            return [], []
        hits = search(texts, depth)
        if scorer is not None:
            return hits, scorer.score(texts, positives)
        return hits, [[math.nan] * len(ids) for ids in positives]

    return find
