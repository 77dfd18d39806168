"""What is chosen on judged development queries: the weight of a fusion, and BM25's k1 and b."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.types import Judgement, Passage, Query
from drkit.errors import DrkitError
from drkit.evaluate.measures import cutoff, evaluate
from drkit.evaluate.significance import rounding
from drkit.search.fusion import DEFAULT_WEIGHT, align, convex
from drkit.search.rankings import RunRow

if TYPE_CHECKING:
    from drkit.search.bm25 import Bm25Retriever

WEIGHTS = tuple(step / 20 for step in range(21))


@frozen
class TunedWeight:
    """The weight of the second ranking with the best mean, the mean of every weight tried, and what was measured."""

    weight: float
    measure: str
    queries: int
    means: Mapping[float, float]


def tune_weight(
    first: Iterable[RunRow],
    second: Iterable[RunRow],
    qrels: Sequence[Judgement],
    measure: str,
) -> TunedWeight:
    """Return the weight for `convex`, of 0, 0.05 .. 1, with the best mean of a measure over the judged queries.

    Of equally good weights (up to rounding), the one nearest to 0.5 is taken, then the lower one. Memory holds the hits
    of the judged queries.

    Raises DrkitError for an unknown measure, missing judgements, and as `align` does.

    >>> from drkit.core.types import Judgement
    >>> first, second = [("q", [("a", 2.0), ("b", 1.0)])], [("q", [("b", 2.0), ("a", 1.0)])]
    >>> tune_weight(first, second, [Judgement("q", "a", 1)], "RR@1").weight
    0.45
    """
    depth = cutoff(measure)
    judged = {judgement.query_id for judgement in qrels}
    hits = [one for one in align(first, second) if one.query_id in judged]
    if judged and not hits:
        raise DrkitError(
            "cannot tune the weight: neither ranking has a judged query; give rankings of the judged queries"
        )
    scores = [evaluate(convex(hits, weight, depth), qrels, [measure]) for weight in WEIGHTS]
    means = {weight: one.mean(measure) for weight, one in zip(WEIGHTS, scores, strict=True)}
    least = max(means.values()) - rounding(means.values())
    weight = min((w for w in means if means[w] >= least), key=lambda w: (abs(w - DEFAULT_WEIGHT), w))
    return TunedWeight(weight, measure, scores[0].queries, means)


def tune_bm25(
    passages: Iterable[Passage],
    parameters: Sequence[tuple[float, float]],
    dev: tuple[Iterable[Query], Iterable[Judgement]] | None,
    measure: str,
    *,
    depth: int = 1000,
    exclude_self: bool = False,
    language: str = "english",
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Bm25Retriever, dict[str, Any]]:
    """Return BM25 with the best of several (k1, b) on dev queries (of equally good pairs, the first), and the facts.

    dev: queries and judgements; without them, the first pair is taken. The passages are read once. depth: of the
    rankings, if the measure has no cutoff; exclude_self: a passage with the query's own id is not a hit; language: see
    `Bm25Retriever`; on_progress: called with the number of pairs done. The facts: `k1` and `b`, and with dev queries
    the `measure`, the number of judged `queries`, and the `means` of all pairs.

    Raises DrkitError for an unknown measure, and without passages, pairs or judgements.

    >>> passages = [Passage("a", "fish fish, salt, lemon, bread, butter, peas, beans"), Passage("b", "fish")]
    >>> dev = [Query("q", "fish")], [Judgement("q", "a", 1)]
    >>> _, facts = tune_bm25(passages, [(1.2, 1.0), (1.2, 0.0)], dev, "RR@1")
    >>> facts["b"], facts["means"]
    (0.0, {'k1 1.2, b 1': 0.0, 'k1 1.2, b 0': 1.0})
    """
    from drkit.search.bm25 import Bm25Retriever

    if not parameters:
        raise DrkitError("no k1 and b to choose from; give at least one pair")
    if dev is None:
        k1, b = parameters[0]
        return Bm25Retriever(k1=k1, b=b, language=language).index(passages), {"k1": k1, "b": b}
    asked, judgements = list(dev[0]), list(dev[1])
    # One more: the passage that `exclude_self` leaves out.
    texts, hits = [query.text for query in asked], (cutoff(measure) or depth) + exclude_self
    best, means = None, dict[str, float]()
    for done, retriever in enumerate(Bm25Retriever.variants(passages, parameters, language), start=1):
        k1, b = parameters[done - 1]
        run = retriever.rankings([query.query_id for query in asked], texts, hits)
        scores = evaluate(run, judgements, [measure], exclude_self=exclude_self)
        mean = scores.mean(measure)
        if best is None or mean > max(means.values()):
            best = retriever, {"k1": k1, "b": b}
        del retriever  # the next one is made meanwhile
        means[f"k1 {k1:g}, b {b:g}"] = mean
        if on_progress:
            on_progress(done)
    assert best is not None
    return best[0], {**best[1], "measure": measure, "queries": scores.queries, "means": means}
