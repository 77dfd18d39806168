"""How far the order of hits with equal scores decides a mean: exact bounds, by the best and the worst order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.types import Judgement
from drkit.evaluate.engines import parse_measure
from drkit.evaluate.measures import MEASURES, Scores, grades_by_query
from drkit.evaluate.names import system_name
from drkit.evaluate.ranks import COUNTS, is_by_rank, keep_judged_hits, measure_by_rank, rows_of_run
from drkit.evaluate.significance import rounding
from drkit.search.rankings import Rankings, RunRow

# Ranges that are wider than this are reported.
REPORTED = 0.001


@frozen
class TieRange:
    """The lowest and the highest mean over all orders of tied hits, and the number of queries that these change."""

    low: float
    high: float
    queries: int


def order_bounds(
    run: Iterable[RunRow],
    qrels: Iterable[Judgement],
    measures: Sequence[str] = MEASURES,
    *,
    exclude_self: bool = False,
) -> tuple[Scores, Scores]:
    """Return the scores of a run whose tied hits are in the worst order for every measure, and in the best.

    The arguments are those of `evaluate`. In the worst order, passages of lower grades come first, those without a
    judgement before all; in the best, the other way round. Only measures that drkit computes itself are included
    (RR, nDCG, P, R, AP ..): all are best with the better passage first. Hits beyond the run's depth are unknown.

    Raises DrkitError as `evaluate` does.

    >>> from drkit.core.types import Judgement
    >>> run, judged = [("q", [("a", 1.0), ("b", 1.0)])], [Judgement("q", "b", 1)]
    >>> [scores.means() for scores in order_bounds(run, judged, ["RR@10"])]
    [{'RR@10': 0.5}, {'RR@10': 1.0}]
    """
    judged = grades_by_query(qrels)
    known = {query: {doc: grade for doc, grade in grades.items() if grade >= 0} for query, grades in judged.items()}
    rankings = Rankings.of(run)
    rankings = (rankings.kept(~rankings.is_own) if exclude_self else rankings).ordered()
    grades = _grades_of_hits(rankings, judged)
    parsed = {name: parse_measure(name) for name in measures}
    counted = {name: one for name, one in parsed.items() if is_by_rank(one) and one.NAME not in COUNTS}
    bounds = []
    for order in (grades, -grades):
        hits = rankings.with_ties_by(order)
        read = {
            name: keep_judged_hits(hits, known) if one.params.get("judged_only") else hits
            for name, one in counted.items()
        }
        bounds.append(Scores({name: measure_by_rank(one, read[name], known) for name, one in counted.items()}))
    return bounds[0], bounds[1]


def _grades_of_hits(rankings: Rankings, judged: Mapping[str, Mapping[str, int]]) -> NDArray[np.int64]:
    """Return the grade of each hit i64[H], 0 for those without a judgement; rankings: in order."""
    pairs = [(row, doc_id, grade) for row, grades in enumerate(judged.values()) for doc_id, grade in grades.items()]
    queries = rows_of_run(rankings, judged)[np.array([row for row, *_ in pairs], np.int64)]
    ranks = rankings.ranks(queries, [doc_id for _, doc_id, _ in pairs])
    is_hit = np.isfinite(ranks)
    found = np.zeros(len(rankings.documents), np.int64)
    given = np.array([grade for *_, grade in pairs], np.int64)
    found[rankings.starts[queries[is_hit]] + ranks[is_hit].astype(np.int64) - 1] = np.maximum(given[is_hit], 0)
    return found


def tie_ranges(bounds: tuple[Scores, Scores]) -> dict[str, TieRange]:
    """Return the ranges of means that are wider than 0.001, by measure; bounds: see `order_bounds`."""
    worst, best = bounds
    ranges = {}
    for measure in worst.measures:
        low, high = worst.per_query[measure], best.per_query[measure]
        step = rounding([*low.values(), *high.values()])
        changed = sum(high[query] - low[query] > step for query in low)
        ranges[measure] = TieRange(worst.mean(measure), best.mean(measure), changed)
    return {measure: one for measure, one in ranges.items() if one.high - one.low > REPORTED}


def describe_ties(system: str, ranges: Mapping[str, TieRange], queries: int) -> str:
    """Say how far the order of tied hits decides the means of a system; empty without ranges.

    >>> describe_ties("BM25", {"RR@10": TieRange(0.6209, 0.6313, 98)}, 1000)
    'BM25 has hits with equal scores: by their order, RR@10 is 0.6209 to 0.6313 (98 of 1,000 queries)'
    """
    if not ranges:
        return ""
    shown = (
        f"{measure} is {one.low:.4f} to {one.high:.4f} ({one.queries:,} of {queries:,} queries)"
        for measure, one in ranges.items()
    )
    return f"{system} has hits with equal scores: by their order, {', '.join(shown)}"


def tie_lines(results: Mapping[str, Any]) -> list[str]:
    """Return a line for each system of an evaluation's results whose tied hits change a mean."""
    return [
        describe_ties(system_name(name), {m: TieRange(**one) for m, one in ranges.items()}, results["queries"])
        for name, ranges in results.get("ties", {}).items()
    ]
