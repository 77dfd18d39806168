"""Tune the weight of a fusion on the judgements of development queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from drkit.errors import DrkitError
from drkit.evaluate.measures import cutoff, evaluate
from drkit.search.fusion import DEFAULT_WEIGHT, Scale, align, convex, min_max

if TYPE_CHECKING:
    from drkit.core.types import Judgement
    from drkit.search.trec import RunRow

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
    *,
    scale: Scale = min_max,
    weights: Sequence[float] = WEIGHTS,
) -> TunedWeight:
    """Return the weight for `convex` with the best mean of a measure over the judged queries.

    Of equally good weights, the one nearest to 0.5 is taken, then the lower one. Memory holds the hits of the judged
    queries.

    Raises DrkitError for an unknown measure, missing judgements, and as `align` does.

    >>> from drkit.core.types import Judgement
    >>> first, second = [("q", [("a", 2.0), ("b", 1.0)])], [("q", [("b", 2.0), ("a", 1.0)])]
    >>> tune_weight(first, second, [Judgement("q", "b", 1)], "RR@1", weights=(0, 0.25, 0.75, 1)).weight
    0.75
    """
    depth = cutoff(measure)
    judged = {judgement.query_id for judgement in qrels}
    hits = [one for one in align(first, second, scale) if one.query_id in judged]
    if judged and not hits:
        raise DrkitError(
            "cannot tune the weight: neither ranking has a judged query; give rankings of the judged queries"
        )
    scores = [evaluate(convex(hits, weight, depth), qrels, [measure]) for weight in weights]
    means = {weight: one.mean(measure) for weight, one in zip(weights, scores, strict=True)}
    best = max(means.values())
    weight = min((w for w in means if means[w] == best), key=lambda w: (abs(w - DEFAULT_WEIGHT), w))
    return TunedWeight(weight, measure, scores[0].queries, means)
