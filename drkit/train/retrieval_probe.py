"""A fixed retrieval task: the judged passages of some queries among random others, or among all; searched exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import evolve, field, frozen

from drkit.core.types import Judgement, Query
from drkit.evaluate import cutoff, evaluate
from drkit.search import FlatIndex, Hits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.data.store import TokenStore
    from drkit.data.tables import StoredCollection
    from drkit.recipe.schema import Probe, Validation
    from drkit.search import AnyEncoder

MEASURE = "RR@10"
# Hits a query, for a measure that looks at all.
DEPTH = 1000
# Passages whose vectors are in memory at once.
WINDOW = 65_536
# Queries before pre-training is over: never those that the run is evaluated on.
SPLITS = ("dev", "train")
_SEED = 0x72657472


@frozen(eq=False)
class RetrievalProbe:
    """Queries of a split, the passages they are searched in (i64[P], places in the corpus), and judgements.

    In the judgements a passage is named by its place. own: the place of the passage that has a query's own id, by
    query id, where that is to be no hit.
    """

    split: str
    queries: tuple[Query, ...]
    places: NDArray[np.int64]
    judgements: tuple[Judgement, ...]
    own: Mapping[str, str] = field(factory=dict)

    def measure(self, encoder: AnyEncoder, passages: TokenStore, measure: str = MEASURE) -> float:
        """A measure (by its ir_measures name) of an encoder; `passages` are the corpus' tokens."""
        depth = (cutoff(measure) or DEPTH) + bool(self.own)
        queries = encoder.encode_queries([query.text for query in self.queries])
        found = self._search(queries, encoder, passages, depth)
        run = [
            (query.query_id, list(hits.without([self.own.get(query.query_id, "")]).pairs()))
            for query, hits in zip(self.queries, found, strict=True)
        ]
        return evaluate(run, self.judgements, [measure]).mean(measure)

    def without_own(self, collection: StoredCollection) -> RetrievalProbe:
        """The same task, where a passage whose id is the query's own is no hit."""
        found = collection.corpus.find([query.query_id for query in self.queries]).tolist()
        own = {query.query_id: str(p) for query, p in zip(self.queries, found, strict=True) if p >= 0}
        return evolve(self, own=own)

    def _search(
        self, queries: NDArray[np.float32], encoder: AnyEncoder, passages: TokenStore, depth: int
    ) -> list[Hits]:
        best = [Hits((), ()) for _ in self.queries]
        for start in range(0, len(self.places), WINDOW):
            part = self.places[start : start + WINDOW].tolist()
            vectors = encoder.encode_tokens([passages.tokens(place) for place in part])
            index = FlatIndex.build(vectors, [str(place) for place in part], engine="torch")
            found = index.search(queries, depth)
            best = [_joined(one, two, depth) for one, two in zip(best, found, strict=True)]
        return best


def _joined(one: Hits, two: Hits, depth: int) -> Hits:
    """The best of both, of equal ones the first's."""
    rows = sorted([*one.pairs(), *two.pairs()], key=lambda hit: -hit[1])[:depth]
    return Hits(tuple(doc_id for doc_id, _ in rows), tuple(score for _, score in rows))


def retrieval_probe(
    collection: StoredCollection, settings: Probe | Validation, *, seed: int, splits: Sequence[str] = SPLITS
) -> RetrievalProbe | None:
    """The probe of a collection: queries of the first of these splits that has any; None without any.

    Queries are taken in a seeded order, as long as their judged passages fill no more than half of the index; random
    other passages fill the rest. Where the settings say 0 passages, all are searched, for as many queries as wanted.
    """
    rng = np.random.default_rng([seed, _SEED])
    for split in splits:
        judged = collection.positives(split)
        queries = [query for query in collection.queries(split) if query.query_id in judged and query.text.strip()]
        if queries and settings.queries:
            order = [queries[place] for place in rng.permutation(len(queries))[: settings.queries]]
            return _drawn(
                collection,
                split,
                order,
                judged=judged,
                passages=settings.passages or 2 * len(collection.corpus),
                rng=rng,
            )
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
