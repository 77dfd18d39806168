"""Sources of hard negatives: BM25, a dense retriever, chance, a TREC run file, or the collection's own."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from attrs import evolve, frozen

from drkit.core.draws import Draws
from drkit.core.protocols import Corpus, FindsIds, ScoringRetriever, VectorRetriever
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners.chain import counted
from drkit.miners.specs import Bm25Config, DenseConfig, GivenConfig, RandomConfig, RefreshConfig, RunFileConfig
from drkit.search.bm25 import Bm25Retriever
from drkit.search.retrieve import Hits, batched
from drkit.search.trec import read_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


class KnownIds:
    """Tells known ids from unknown ones: by the corpus's own `find` where it has one, else by a set of all its ids."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus: Any = corpus

    def __call__(self, doc_ids: Sequence[str]) -> list[bool]:
        """Whether the corpus has each of these ids."""
        if not doc_ids:
            return []
        if isinstance(self._corpus, FindsIds):
            return [place >= 0 for place in self._corpus.find(doc_ids)]
        return [doc_id in self._all for doc_id in doc_ids]

    @cached_property
    def _all(self) -> frozenset[str]:
        return frozenset(passage.doc_id for passage in self._corpus)


class Bm25Miner:
    """The best-ranked passages of BM25 that are no judged positive of the query.

    Fewer than asked for where fewer passages share a word with the query; none for a query without text. Memory: the
    index, and one score a passage. Robertson and Zaragoza 2009.
    """

    def __init__(self, config: Bm25Config, context: BuildContext | None = None) -> None:
        self.config, self.context = config, context
        self._retriever: Bm25Retriever | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Take in the passages, streamed."""
        self._retriever = Bm25Retriever(k1=self.config.k1, b=self.config.b).index(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, best first, in the requests' order. Raises DrkitError before `index`."""
        if self._retriever is None:
            raise DrkitError("the bm25 miner has no passages yet; call index(corpus) before mine(requests, depth)")
        yield from mine_by_search(requests, scorer(self._retriever), Reach(depth))


class DenseMiner:
    """The best-ranked passages of `context.retriever` that are no judged positive of the query.

    The retriever is any object with `search(texts, depth)` that gives (doc_ids, scores) a text, best first, over
    the corpus that is mined; `config.skip` of the best are left out once the positives are. Where it has a
    `score(texts, doc_ids)` too, the positives are scored. Memory: `config.memory_mb` of
    hits, and what the retriever takes for as many queries; never a matrix of queries by passages. Zhan et al. 2021.
    """

    def __init__(self, config: DenseConfig | RefreshConfig, context: BuildContext | None = None) -> None:
        if context is None or context.retriever is None:
            raise DrkitError("the dense miner needs a retriever to search with: BuildContext(retriever=...)")
        self.config, self._retriever = config, context.retriever
        self._size: int | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Note the corpus's size: the retriever has its index already."""
        self._size = len(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, best first, in the requests' order. Raises DrkitError before `index`."""
        if self._size is None:
            raise DrkitError("the dense miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        reach = Reach(depth, self.config.skip, self._size, self.config.memory_mb)
        yield from mine_by_search(requests, scorer(self._retriever), reach)


class RandomMiner:
    """Passages drawn uniformly, without repetition, never a judged positive; all scores are 0.

    A query's draw depends on the seed, its id and the corpus, on no other query.
    """

    def __init__(self, config: RandomConfig, context: BuildContext | None = None) -> None:
        self.config = config
        self._seed = context.seed if context is not None else 42
        self._ids: list[str] | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Note the passages' ids."""
        self._ids = [passage.doc_id for passage in corpus]

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """`depth` negatives a request, or all others where the corpus has no more.

        Raises DrkitError before `index`.
        """
        if self._ids is None:
            raise DrkitError("the random miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        for request in requests:
            drawn = tuple(self._drawn(request, self._ids, depth))
            yield Mined(request.query_id, drawn, (0.0,) * len(drawn))

    def _drawn(self, request: MiningRequest, ids: list[str], depth: int) -> list[str]:
        draws = Draws(self._seed, 0, [_key(request.query_id)])
        never = request.positives | request.excluded
        wanted = depth + len(never)
        # drawing again on a repetition is quick only while repetitions are rare
        places = _permutation(draws, len(ids)) if wanted * 2 >= len(ids) else _distinct(draws, len(ids), wanted)
        return [ids[p] for p in places.tolist() if ids[p] not in never][:depth]


def _key(query_id: str) -> int:
    digest = blake2b(query_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _permutation(draws: Draws, size: int) -> NDArray[np.int64]:
    order: NDArray[np.int64] = np.argsort(draws.integers(2**53, size)[0], kind="stable")
    return order


def _distinct(draws: Draws, size: int, count: int) -> NDArray[np.int64]:
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        more = np.concatenate([drawn, draws.integers(size, 2 * count)[0]])
        _, first = np.unique(more, return_index=True)
        drawn = more[np.sort(first)]
    return drawn[:count]


_ROWS = 256
_SCHEMA = pa.schema([("doc_ids", pa.large_list(pa.large_string())), ("scores", pa.large_list(pa.float64()))])


class RunFileMiner:
    """The best-ranked passages of a TREC run file that are no judged positive of the query.

    Ids that the corpus lacks are left out and counted (`unknown-id`); a query that the file lacks gets no negatives
    (`query-not-in-run`, counted in queries). Memory: a place a query; the rankings go through a temporary file.
    """

    def __init__(self, config: RunFileConfig, context: BuildContext | None = None) -> None:  # noqa: ARG002
        if not config.path:
            raise DrkitError("the run-file miner needs a file: run-file:PATH, or its setting path")
        self.config = config
        self._rankings: Rankings | None = None
        self._known: KnownIds | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Read the file, one query at a time. Raises DrkitError, with file and line, where it is no run."""
        self._rankings, self._known = Rankings(Path(self.config.path).expanduser()), KnownIds(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, best first, in the requests' order. Raises DrkitError before `index`."""
        if self._rankings is None or self._known is None:
            raise DrkitError("the run-file miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        for batch in batched(requests, _ROWS):
            for request in batch:
                yield self._answer(request, self._rankings, self._known, depth)

    def _answer(self, request: MiningRequest, rankings: Rankings, known: KnownIds, depth: int) -> Mined:
        ranking = rankings.get(request.query_id)
        if ranking is None:
            return Mined(request.query_id, (), (), dropped={"query-not-in-run": 1})
        there = known(list(ranking))
        hits = {doc_id: score for (doc_id, score), is_known in zip(ranking.items(), there, strict=True) if is_known}
        positives = {doc_id: ranking[doc_id] for doc_id in sorted(request.positives) if doc_id in ranking}
        found = negatives_of(request, (tuple(hits), tuple(hits.values())), depth, positive_scores=positives)
        return evolve(found, dropped=counted(found, unknown_id=len(ranking) - len(hits)))


class Rankings:
    """The rankings of a run file by query, on disk: best first, ties as trec_eval breaks them."""

    def __init__(self, path: Path) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="drkit-run-")
        file = Path(self._scratch.name) / "rankings.arrow"
        self._rows: dict[str, int] = {}
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
            for batch in batched(read_run(path), _ROWS):
                for query_id, _ in batch:
                    self._rows[query_id] = len(self._rows)
                ranked = [sorted(hits, key=lambda hit: (hit[1], hit[0]), reverse=True) for _, hits in batch]
                columns = [[[hit[side] for hit in hits] for hits in ranked] for side in (0, 1)]
                arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
                writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
        reader: Any = pa.ipc.open_file(pa.memory_map(str(file)))
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]

    def get(self, query_id: str) -> dict[str, float] | None:
        """Scores by passage, best first; None where the file lacks the query."""
        row = self._rows.get(query_id)
        if row is None:
            return None
        doc_ids, scores = (column[row % _ROWS].as_py() for column in self._batches[row // _ROWS].columns)
        return dict(zip(doc_ids, scores, strict=True))


class GivenMiner:
    """A query's own negatives, in the order of the file; all scores are 0, for the file has none.

    They are `context.negatives`, passage ids by query id (`StoredCollection.negatives(split)`). Ids that the corpus
    lacks are counted as `unknown-id`. A query that has none gets none.
    """

    def __init__(self, config: GivenConfig, context: BuildContext | None = None) -> None:
        self.config = config
        self._given = context.negatives if context is not None else None
        self._known: KnownIds | None = None

    @property
    def depth(self) -> int:
        """How deep the ranking is that negatives are drawn from."""
        return self.config.depth

    def index(self, corpus: Corpus) -> None:
        """Note which ids there are. Raises DrkitError where the collection carries no negatives."""
        if not self._given:
            raise DrkitError(
                "the collection carries no negatives of its own for these queries; take another source: bm25, dense .."
            )
        self._known = KnownIds(corpus)

    def mine(self, requests: Iterable[MiningRequest], depth: int) -> Iterator[Mined]:
        """Up to `depth` negatives a request, in the requests' order. Raises DrkitError before `index`."""
        if self._known is None or self._given is None:
            raise DrkitError("the given miner has no corpus yet; call index(corpus) before mine(requests, depth)")
        for request in requests:
            own = list(self._given.get(request.query_id, ()))
            kept = [doc_id for doc_id, there in zip(own, self._known(own), strict=True) if there]
            found = negatives_of(request, (kept, [0.0] * len(kept)), depth)
            dropped = {**found.dropped, **({"unknown-id": len(own) - len(kept)} if len(own) > len(kept) else {})}
            yield Mined(request.query_id, found.doc_ids, found.scores, dropped=dropped)
