"""A small, fixed retrieval task: the judged passages of some queries among random others, searched exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from drkit.core.types import Judgement, Query
from drkit.evaluate import evaluate
from drkit.search import FlatIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.core.recipe import Probe
    from drkit.data.store import TokenStore
    from drkit.data.tables import StoredCollection
    from drkit.search import TextEncoder

MEASURE = "RR@10"
DEPTH = 10
# Queries before pre-training is over: never those that the run is evaluated on.
SPLITS = ("dev", "train")
_SEED = 0x72657472


@frozen(eq=False)
class RetrievalProbe:
    """Queries of a split, the passages they are searched in (i64[P], places in the corpus), and judgements.

    In the judgements a passage is named by its place.
    """

    split: str
    queries: tuple[Query, ...]
    places: NDArray[np.int64]
    judgements: tuple[Judgement, ...]

    def measure(self, encoder: TextEncoder, passages: TokenStore) -> float:
        """RR@10 of an encoder, as ir_measures computes it; `passages` are the corpus' tokens."""
        vectors = encoder.encode_tokens([passages.tokens(place) for place in self.places])
        index = FlatIndex.build(vectors, [str(place) for place in self.places], engine="torch")
        hits = index.search(encoder.encode_queries([query.text for query in self.queries]), DEPTH)
        run = [(query.query_id, list(found.pairs())) for query, found in zip(self.queries, hits, strict=True)]
        return evaluate(run, self.judgements, [MEASURE]).mean(MEASURE)


def retrieval_probe(collection: StoredCollection, settings: Probe, *, seed: int) -> RetrievalProbe | None:
    """The probe of a collection: dev queries, or training queries where there are none; None without any.

    Queries are taken in a seeded order, as long as their judged passages fill no more than half of the index; random
    other passages fill the rest.
    """
    rng = np.random.default_rng([seed, _SEED])
    for split in SPLITS:
        judged = collection.positives(split)
        queries = [query for query in collection.queries(split) if query.query_id in judged and query.text.strip()]
        if queries and settings.queries:
            order = [queries[place] for place in rng.permutation(len(queries))[: settings.queries]]
            return _drawn(collection, split, order, judged=judged, passages=settings.passages, rng=rng)
    return None


def _drawn(
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
    chosen: set[int] = set()
    for query in queries:
        grades = judged[query.query_id]
        places = collection.corpus.positions(list(grades)).tolist()
        if kept and len(chosen.union(places)) > passages // 2:
            break
        kept.append(query)
        chosen.update(places)
        judgements += [Judgement(query.query_id, str(p), g) for p, g in zip(places, grades.values(), strict=True)]
    size = len(collection.corpus)
    drawn = rng.choice(size, min(size, passages), replace=False)
    others = drawn[~np.isin(drawn, list(chosen))][: max(passages - len(chosen), 0)]
    places = np.sort(np.concatenate([np.array(list(chosen), dtype=np.int64), others]))
    return RetrievalProbe(split, tuple(kept), places, tuple(judgements))
