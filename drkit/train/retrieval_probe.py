"""A retrieval probe: search a sample of the passages for a sample of queries, with an encoder in training.

Probes of pre-training and the validation of fine-tuning measure with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from drkit.core.types import Judgement, Query
from drkit.data.corpus import StoredCollection
from drkit.data.store import TokenStore
from drkit.evaluate import Scores, cutoff, evaluate
from drkit.recipe.training import Probe, Validation
from drkit.search import AnyEncoder, FlatIndex, Hits

MEASURE = "RR@10"
# Hits per query, for a measure without a cutoff.
_DEPTH = 1000
# Passages whose vectors are in memory at once.
_WINDOW = 65_536
# Queries that probes of pre-training may use: never those that the run is evaluated on.
_SPLITS = ("dev", "train")
_RETRIEVAL_SEED = 0x72657472


@frozen(eq=False)
class RetrievalProbe:
    """Queries of a split, their judgements, and the passages to search, as indices i64[P] in the corpus.

    Judgements name a passage by its index. self_passages: by query id, the index of the passage with the same id, if
    that passage is not to count as a hit.
    """

    split: str
    queries: tuple[Query, ...]
    indices: NDArray[np.int64]
    judgements: tuple[Judgement, ...]
    self_passages: Mapping[str, str] = field(factory=dict)

    def measure(self, encoder: AnyEncoder, passages: TokenStore, measure: str = MEASURE) -> float:
        """Return a measure (by its ir_measures name) of an encoder; passages: the tokens of the corpus."""
        return self.scores(encoder, passages, measure).mean(measure)

    def scores(self, encoder: AnyEncoder, passages: TokenStore, measure: str = MEASURE) -> Scores:
        """Return a measure of an encoder for each query; see `measure`."""
        depth = (cutoff(measure) or _DEPTH) + bool(self.self_passages)
        queries = encoder.encode_queries([query.text for query in self.queries])
        found = self._search(queries, encoder, passages, depth)
        run = [
            (query.query_id, list(hits.without([self.self_passages.get(query.query_id, "")]).pairs()))
            for query, hits in zip(self.queries, found, strict=True)
        ]
        return evaluate(run, self.judgements, [measure])

    def excluding_self(self, collection: StoredCollection) -> RetrievalProbe:
        """Return the same task without passages whose id is the query's own id."""
        found = collection.corpus.find([query.query_id for query in self.queries]).tolist()
        same = {query.query_id: str(index) for query, index in zip(self.queries, found, strict=True) if index >= 0}
        return evolve(self, self_passages=same)

    def _search(
        self, queries: NDArray[np.float32], encoder: AnyEncoder, passages: TokenStore, depth: int
    ) -> list[Hits]:
        best = [Hits((), ()) for _ in self.queries]
        for start in range(0, len(self.indices), _WINDOW):
            window = self.indices[start : start + _WINDOW].tolist()
            vectors = encoder.encode_tokens([passages.tokens(index) for index in window])
            index = FlatIndex.build(vectors, [str(index) for index in window])
            found = index.search(queries, depth)
            best = [_merge(one, two, depth) for one, two in zip(best, found, strict=True)]
        return best


def _merge(one: Hits, two: Hits, depth: int) -> Hits:
    """Return the best hits of both; of equal scores, those of `one` come first."""
    rows = sorted([*one.pairs(), *two.pairs()], key=lambda hit: -hit[1])[:depth]
    return Hits(tuple(doc_id for doc_id, _ in rows), tuple(score for _, score in rows))


def retrieval_probe(
    collection: StoredCollection, settings: Probe | Validation, *, seed: int, splits: Sequence[str] = _SPLITS
) -> RetrievalProbe | None:
    """Draw the probe of a collection, with queries of the first of `splits` that has any; None if none has.

    Queries are taken in a seeded order as long as their judged passages fill at most half of `settings.passages`;
    random other passages fill the rest. With 0 passages, all are searched, for `settings.queries` queries.
    """
    rng = np.random.default_rng([seed, _RETRIEVAL_SEED])
    for split in splits:
        judged = collection.positives(split)
        queries = [query for query in collection.queries(split) if query.query_id in judged and query.text.strip()]
        if queries and settings.queries:
            order = [queries[index] for index in rng.permutation(len(queries))[: settings.queries]]
            passages = settings.passages or 2 * len(collection.corpus)
            return _draw_probe(collection, split, order, judged=judged, passages=passages, rng=rng)
    return None


def _draw_probe(
    collection: StoredCollection,
    split: str,
    queries: list[Query],
    *,
    judged: Mapping[str, Mapping[str, int]],
    passages: int,
    rng: np.random.Generator,
) -> RetrievalProbe:
    kept: list[Query] = []
    judgements: list[Judgement] = []
    relevant: set[int] = set()
    for query in queries:
        grades = judged[query.query_id]
        found = collection.corpus.positions(list(grades)).tolist()
        if kept and len(relevant.union(found)) > passages // 2:
            break
        kept.append(query)
        relevant.update(found)
        judgements += [Judgement(query.query_id, str(i), g) for i, g in zip(found, grades.values(), strict=True)]
    size = len(collection.corpus)
    drawn = rng.choice(size, min(size, passages), replace=False)
    others = drawn[~np.isin(drawn, list(relevant))][: max(passages - len(relevant), 0)]
    indices = np.sort(np.concatenate([np.array(list(relevant), dtype=np.int64), others]))
    return RetrievalProbe(split, tuple(kept), indices, tuple(judgements))
