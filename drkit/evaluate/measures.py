"""Measures by name and per query: trec_eval's values, by ir_measures, over the same queries for all measures."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.core.files import write_text
from drkit.core.settings import MOST
from drkit.core.types import HIGHEST_GRADE, Judgement
from drkit.data.rows import batched
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.search.rankings import Rankings, RunRow

# Capped recall, which ir_measures lacks.
_CAPPED = re.compile(r"R_cap@([0-9]+)")
MEASURES = ("RR@10", "nDCG@10", "R@100", "R@1000")
# Whose hits the engines of ir_measures get at once, as text.
QUERIES_AT_ONCE = 512


@frozen
class Scores:
    """Values of one system: `per_query[measure][query_id]`, for every judged query."""

    per_query: Mapping[str, Mapping[str, float]]

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures, in the requested order."""
        return tuple(self.per_query)

    @property
    def queries(self) -> int:
        """Number of queries that every mean is taken over."""
        return len(next(iter(self.per_query.values()), ()))

    def mean(self, measure: str) -> float:
        """Return the mean over all judged queries."""
        values = self.per_query[measure]
        return sum(values.values()) / len(values)

    def means(self) -> dict[str, float]:
        """Return all means, by measure."""
        return {measure: self.mean(measure) for measure in self.measures}


def evaluate(
    run: Iterable[RunRow],
    qrels: Iterable[Judgement],
    measures: Sequence[str] = MEASURES,
    *,
    exclude_self: bool = False,
) -> Scores:
    """Evaluate a run as trec_eval does (relevance > 0 is relevant; ties by document id, in descending order).

    run: `Rankings`, as `read_run` returns them, or rows (query_id, [(doc_id, score), ..]), with hits in any order.
    Every judged query counts; one that is missing from the run, or has no positive judgement, counts 0. Queries without
    judgements are ignored. exclude_self: remove hits whose id equals the query's before measuring (as in ArguAna, where
    every query is also a passage).

    Raises DrkitError for an unknown measure, missing judgements, contradictory judgements, duplicate rows or documents,
    or a score that is not finite.

    >>> from drkit.core.types import Judgement
    >>> evaluate([("q1", [("d1", 2.0), ("d2", 1.0)])], [Judgement("q1", "d2", 1)], ["RR@10", "R@1"]).means()
    {'RR@10': 0.5, 'R@1': 0.0}
    """
    from drkit.search.rankings import Rankings

    parsed, judged = {name: _parse_measure(name) for name in measures}, _grades_by_query(qrels)
    # Without negative judgements, which trec_eval treats as unjudged: without others it reads past its arrays.
    known = {query: {doc: g for doc, g in grades.items() if g >= 0} for query, grades in judged.items()}
    rankings = Rankings.of(run)
    rankings = (rankings.kept(~rankings.is_own) if exclude_self else rankings).ordered()
    relevant = _find_relevant(rankings, judged)
    values: dict[Any, Mapping[str, float]] = {}
    others = []
    for measure in parsed.values():
        if measure.NAME in _BY_RANK and not {*measure.params} - {"cutoff"}:
            found = _BY_RANK[measure.NAME](relevant, float(measure.params.get("cutoff", sys.maxsize)))
            values[measure] = dict(zip(judged, found.tolist(), strict=True))
        else:
            others.append(measure)
    values |= _values_of_engines(others, rankings, judged, known)
    return Scores({name: _cap_recall(name, values[measure], known) for name, measure in parsed.items()})


def _values_of_engines(
    measures: Sequence[Any],
    rankings: Rankings,
    judged: Mapping[str, Mapping[str, int]],
    known: Mapping[str, Mapping[str, int]],
) -> dict[Any, dict[str, float]]:
    """Return the values of measures that the engines of ir_measures compute; 0 for a query without hits.

    known: the judgements without negative ones, which only some measures read.
    """
    import ir_measures

    values = {measure: dict.fromkeys(judged, 0.0) for measure in measures}
    for (depth, counts_all), group in groupby(sorted(measures, key=_hits_used), _hits_used):
        chosen, grades = list(group), judged if counts_all else known
        counts = np.diff(rankings.starts)
        counts = np.minimum(counts, depth) if depth else counts
        rows = [row for row, query in enumerate(rankings.query_ids) if grades.get(query) and counts[row]]
        for some in batched(rows, QUERIES_AT_ONCE):
            top = {rankings.query_ids[row]: _without_ties(rankings, row, int(counts[row])) for row in some}
            for result in ir_measures.iter_calc(chosen, {query: grades[query] for query in top}, top):
                values[result.measure][result.query_id] = float(result.value)
    return values


@frozen(eq=False, slots=False)
class Relevant:
    """The relevant passages of Q queries, those of each query in order of rank; each measure returns f64[Q].

    rows: i64[n], the passage's query. grades: i64[n], at least 1. ranks: f64[n], from 1; infinite if it is not a hit.
    n_queries: Q. Sums are taken in trec_eval's order, so that they have its bits.
    """

    rows: NDArray[np.int64]
    grades: NDArray[np.int64]
    ranks: NDArray[np.float64]
    n_queries: int

    def precision(self, cutoff: float) -> NDArray[np.float64]:
        """Return the share of the first hits that are relevant."""
        return self._found(cutoff) / cutoff

    def recall(self, cutoff: float) -> NDArray[np.float64]:
        """Return the share of the relevant passages that are among the first hits."""
        return self._found(cutoff) / self._totals

    def success(self, cutoff: float) -> NDArray[np.float64]:
        """Return 1 if any of the first hits is relevant."""
        return np.minimum(self._found(cutoff), 1.0)

    def reciprocal_rank(self, cutoff: float) -> NDArray[np.float64]:
        """Return 1 / rank of the first relevant hit."""
        return self._sum(1 / self.ranks, (self._numbers == 1) & (self.ranks <= cutoff))

    def average_precision(self, cutoff: float) -> NDArray[np.float64]:
        """Return the mean of the precision at each relevant passage, 0 at those that are not among the first hits."""
        return self._sum(self._numbers / self.ranks, self.ranks <= cutoff) / self._totals

    def ndcg(self, cutoff: float) -> NDArray[np.float64]:
        """Return the discounted sum of the grades, as a share of that of the best possible ranking."""
        best = np.lexsort((-self.grades, self.rows))
        ideal = Relevant(self.rows, self.grades[best], self._numbers, self.n_queries)
        return self._discounted(cutoff) / np.maximum(ideal._discounted(cutoff), 1)

    def _found(self, cutoff: float) -> NDArray[np.float64]:
        return self._sum(np.ones(len(self.rows)), self.ranks <= cutoff)

    def _discounted(self, cutoff: float) -> NDArray[np.float64]:
        # The logarithm is C's, as in trec_eval; numpy's may differ in the last bit.
        logarithms = np.array([math.log2(rank + 1) for rank in self.ranks])
        return self._sum(self.grades / logarithms, self.ranks <= cutoff)

    def _sum(self, values: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.bincount(self.rows[chosen], values[chosen], self.n_queries).astype(np.float64, copy=False)

    @cached_property
    def _numbers(self) -> NDArray[np.float64]:
        """From 1, the number of each passage among those of its query."""
        return np.arange(1.0, len(self.rows) + 1) - np.searchsorted(self.rows, self.rows)

    @cached_property
    def _totals(self) -> NDArray[np.int64]:
        return np.maximum(np.bincount(self.rows, minlength=self.n_queries), 1)


# Measures that need no engine if they have no parameters but a cutoff.
_BY_RANK = {
    "AP": Relevant.average_precision,
    "P": Relevant.precision,
    "R": Relevant.recall,
    "RR": Relevant.reciprocal_rank,
    "Success": Relevant.success,
    "nDCG": Relevant.ndcg,
}


def _find_relevant(rankings: Rankings, judged: Mapping[str, Mapping[str, int]]) -> Relevant:
    """Return the relevant passages of the judged queries."""
    found = [(row, *pair) for row, grades in enumerate(judged.values()) for pair in grades.items() if pair[1] > 0]
    rows, grades = (np.array([one[column] for one in found], np.int64) for column in (0, 2))
    rows_of_run = {query_id: row for row, query_id in enumerate(rankings.query_ids)}
    queries = np.array([rows_of_run.get(query_id, -1) for query_id in judged], np.int64)
    ranks = rankings.ranks(queries[rows], [doc_id for _, doc_id, _ in found])
    order = np.lexsort((ranks, rows))
    return Relevant(rows[order], grades[order], ranks[order], len(judged))


def _without_ties(rankings: Rankings, row: int, count: int) -> dict[str, float]:
    """Return the first hits of a query with scores that differ.

    The engines behind ir_measures break ties differently (RR@10's by position); on these scores they agree.
    """
    return dict(zip(rankings.names(row, count), np.arange(0.0, -count, -1).tolist(), strict=True))


def _cap_recall(name: str, values: Mapping[str, float], judged: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return the values of a measure; of R_cap@k, recall over the most that k hits can contain.

    Source: Thakur et al. 2021, BEIR, section 4.3.
    """
    capped = _CAPPED.fullmatch(name)
    if capped is None:
        return dict(values)
    relevant = {query: sum(grade > 0 for grade in judged[query].values()) for query in values}
    return {
        q: value * (relevant[q] / min(relevant[q], int(capped[1])) if value else 0.0) for q, value in values.items()
    }


def average(scores: Sequence[Scores]) -> Scores:
    """Average several runs of one system (seeds, draws of training queries) per query and measure.

    A test on the result compares systems over queries, as for single runs; it ignores the variance between runs.

    Raises DrkitError for no runs, or runs that were evaluated on different queries or with different measures.

    >>> average([Scores({"RR@10": {"q": 1.0}}), Scores({"RR@10": {"q": 0.5}})]).per_query
    {'RR@10': {'q': 0.75}}
    """
    if not scores:
        raise DrkitError("cannot average zero runs; give at least one")
    first = scores[0].per_query
    for other in scores[1:]:
        if other.per_query.keys() != first.keys():
            raise DrkitError("cannot average runs evaluated with different measures; evaluate them with the same ones")
        if any(other.per_query[measure].keys() != first[measure].keys() for measure in first):
            raise DrkitError("cannot average runs evaluated on different queries; use the same judgements")
    return Scores(
        {
            measure: {query: sum(one.per_query[measure][query] for one in scores) / len(scores) for query in values}
            for measure, values in first.items()
        }
    )


def check_measures(measures: Sequence[str]) -> None:
    """Raise DrkitError for an unknown measure."""
    for name in measures:
        _parse_measure(name)


def cutoff(measure: str) -> int | None:
    """Return the number of hits that a measure uses; None for all. Raises DrkitError for an unknown measure.

    >>> cutoff("RR@10"), cutoff("AP")
    (10, None)
    """
    found = _parse_measure(measure).params.get("cutoff")
    return None if found is None else int(found)


def _hits_used(measure: Any) -> tuple[int, bool]:
    """Return how many hits a measure reads, 0 for all, and whether negative grades count.

    The engines behind ir_measures sort all the hits that they get. A measure of judged hits alone reads all: the others
    are removed before it counts to its cutoff.
    """
    depth = 0 if measure.params.get("judged_only") else measure.params.get("cutoff", 0)
    return depth, measure.NAME == "Judged"


def _parse_measure(name: str) -> Any:
    """Return the measure of ir_measures by which a name is computed."""
    import ir_measures

    try:
        measure = ir_measures.parse_measure(_CAPPED.sub(r"R@\1", name))
        measure.validate_params()
        numbers = [value for value in measure.params.values() if isinstance(value, int)]
        fits = measure.params.get("cutoff", 1) > 0 and all(abs(number) <= MOST for number in numbers)
        if fits and ir_measures.DefaultPipeline.supports(measure):
            return measure
    except (NameError, ValueError, AssertionError, SyntaxError, TypeError, AttributeError):
        pass
    raise DrkitError(
        f"unknown measure {name!r}; examples of valid names: {', '.join(MEASURES)}, P@5, AP, Success@10, R_cap@100"
    )


def _grades_by_query(qrels: Iterable[Judgement]) -> dict[str, dict[str, int]]:
    judged: dict[str, dict[str, int]] = {}
    for judgement in qrels:
        if judgement.relevance > HIGHEST_GRADE:
            raise DrkitError(
                f"document {judgement.doc_id!r} has relevance {judgement.relevance} for query {judgement.query_id!r}; "
                f"the highest supported grade is {HIGHEST_GRADE:,}"
            )
        grades = judged.setdefault(judgement.query_id, {})
        if grades.setdefault(judgement.doc_id, judgement.relevance) != judgement.relevance:
            raise DrkitError(
                f"document {judgement.doc_id!r} is judged twice for query {judgement.query_id!r}, as "
                f"{grades[judgement.doc_id]} and as {judgement.relevance}; remove one of the two judgements"
            )
    if not judged:
        raise DrkitError("no judgements to evaluate against; give a collection and a split that have judgements")
    return judged


def write_per_query(path: Path, systems: Sequence[tuple[str, Scores]]) -> None:
    """Write a line per system and query, with `system`, `query_id` and a value per measure, as TSV with a header."""
    rows = [
        {"system": system, "query_id": query_id, **{m: scores.per_query[m][query_id] for m in scores.measures}}
        for system, scores in systems
        for query_id in next(iter(scores.per_query.values()), {})
    ]
    text = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.DictWriter(text, names, delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
