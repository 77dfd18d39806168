"""Measures that ranks, grades and counts decide, computed for all queries at once; they need no engine.

Relevant are documents with at least the grade `rel` (1 unless a measure says otherwise). With `judged_only`, hits
without a judgement are removed before anything is counted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

if TYPE_CHECKING:
    from drkit.search.rankings import Rankings

# The highest grade of ERR, as in gdeval: a passage of this grade satisfies with probability 15/16.
HIGHEST_OF_ERR = 4


@frozen(eq=False, slots=False)
class Relevant:
    """The relevant passages of Q queries, those of each query in order of rank; each measure returns f64[Q].

    rows: i64[n], the passage's query. grades: i64[n]. ranks: f64[n], from 1; infinite if it is not a hit. hits: i64[Q],
    the number of each query's hits. Sums are taken in trec_eval's order, so that they have its bits.
    """

    rows: NDArray[np.int64]
    grades: NDArray[np.int64]
    ranks: NDArray[np.float64]
    hits: NDArray[np.int64]

    @property
    def n_queries(self) -> int:
        """Q, the number of queries."""
        return len(self.hits)

    def precision(self, cutoff: float) -> NDArray[np.float64]:
        """Return the share of the first hits that are relevant."""
        return self.found(cutoff) / cutoff

    def recall(self, cutoff: float) -> NDArray[np.float64]:
        """Return the share of the relevant passages that are among the first hits."""
        return self.found(cutoff) / np.maximum(self.totals, 1)

    def success(self, cutoff: float) -> NDArray[np.float64]:
        """Return 1 if any of the first hits is relevant."""
        return np.minimum(self.found(cutoff), 1.0)

    def reciprocal_rank(self, cutoff: float) -> NDArray[np.float64]:
        """Return 1 / rank of the first relevant hit."""
        return self._sum(1 / self.ranks, (self._numbers == 1) & (self.ranks <= cutoff))

    def average_precision(self, cutoff: float) -> NDArray[np.float64]:
        """Return the mean of the precision at each relevant passage, 0 at those that are not among the first hits."""
        return self._sum(self._numbers / self.ranks, self.ranks <= cutoff) / np.maximum(self.totals, 1)

    def ndcg(self, cutoff: float) -> NDArray[np.float64]:
        """Return the discounted sum of the grades, as a share of that of the best possible ranking."""
        return self._share_of_best(self.grades, cutoff)

    def exponential_ndcg(self, cutoff: float) -> NDArray[np.float64]:
        """Return nDCG with the gains 2^grade - 1, as gdeval computes it (but not rounded to 5 decimals).

        Source: Burges et al. 2005, Learning to rank using gradient descent.
        """
        highest = np.zeros(self.n_queries, np.int64)
        np.maximum.at(highest, self.rows, self.grades)
        # Divided by 2^highest, which does not change the share, so that no grade is too large.
        return self._share_of_best(np.exp2(self.grades - highest[self.rows]) - np.exp2(-highest[self.rows]), cutoff)

    def expected_reciprocal_rank(self, cutoff: float) -> NDArray[np.float64]:
        """Return ERR, the expected 1 / rank at which a reader is satisfied (gdeval's, but not rounded to 5 decimals).

        Source: Chapelle et al. 2009, Expected reciprocal rank for graded relevance.
        """
        satisfied = (np.exp2(self.grades) - 1) / 2**HIGHEST_OF_ERR
        reached = np.ones(len(self.rows))  # the probability that the passages above did not satisfy
        for i in range(1, len(self.rows)):
            if self.rows[i] == self.rows[i - 1]:
                reached[i] = reached[i - 1] * (1 - satisfied[i - 1])
        return self._sum(satisfied * reached / self.ranks, self.ranks <= cutoff)

    def accuracy(self, cutoff: float) -> NDArray[np.float64]:
        """Return the share of pairs of a relevant and another hit that are in the right order.

        It is 0 without a relevant hit, and 1 if all hits are relevant.
        """
        relevant = self.found(cutoff)
        others = np.minimum(self.hits, cutoff) - relevant
        wrong = self._sum(self.ranks - self._numbers, self.ranks <= cutoff)
        return np.where(relevant > 0, 1 - wrong / np.maximum(others * relevant, 1), 0.0)

    def found(self, cutoff: float) -> NDArray[np.float64]:
        """Return the number of relevant passages among the first hits."""
        return self._sum(np.ones(len(self.rows)), self.ranks <= cutoff)

    @cached_property
    def totals(self) -> NDArray[np.int64]:
        """i64[Q], the number of relevant passages."""
        return np.bincount(self.rows, minlength=self.n_queries)

    def _share_of_best(self, gains: NDArray[Any], cutoff: float) -> NDArray[np.float64]:
        best = np.lexsort((-gains, self.rows))
        ideal = evolve(self, ranks=self._numbers)
        highest = ideal._discounted(gains[best], cutoff)
        return self._discounted(gains, cutoff) / np.where(highest > 0, highest, 1)

    def _discounted(self, gains: NDArray[Any], cutoff: float) -> NDArray[np.float64]:
        # The logarithm is C's, as in trec_eval; numpy's may differ in the last bit.
        logarithms = np.array([math.log2(rank + 1) for rank in self.ranks])
        return self._sum(gains / logarithms, self.ranks <= cutoff)

    def _sum(self, values: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.bincount(self.rows[chosen], values[chosen], self.n_queries).astype(np.float64, copy=False)

    @cached_property
    def _numbers(self) -> NDArray[np.float64]:
        """From 1, the number of each passage among those of its query."""
        return np.arange(1.0, len(self.rows) + 1) - np.searchsorted(self.rows, self.rows)


_MEASURES: Mapping[str, Callable[[Relevant, float], NDArray[np.float64]]] = {
    "Accuracy": Relevant.accuracy,
    "AP": Relevant.average_precision,
    "ERR": Relevant.expected_reciprocal_rank,
    "P": Relevant.precision,
    "R": Relevant.recall,
    "RR": Relevant.reciprocal_rank,
    "Success": Relevant.success,
    "nDCG": Relevant.ndcg,
}
# Numbers of queries, passages and hits; over several queries, they are added up.
COUNTS = ("NumQ", "NumRel", "NumRet")


def is_by_rank(measure: Any) -> bool:
    """Return whether a measure of ir_measures is computed here."""
    return measure.NAME in (*_MEASURES, *COUNTS) and "gains" not in measure.params


def measure_by_rank(measure: Any, rankings: Rankings, judged: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Return the values of the judged queries by a measure that `is_by_rank`.

    rankings: in order; judged: the grades of each query's passages, at least 0.
    """
    relevant = find_relevant(rankings, judged, least=measure.params.get("rel", 1))
    if measure.NAME in COUNTS:
        values = _counts(measure, relevant)
    else:
        compute = _MEASURES[measure.NAME]
        if measure.NAME == "nDCG" and measure["dcg"] == "exp-log2":
            compute = Relevant.exponential_ndcg
        values = compute(relevant, float(measure.params.get("cutoff", sys.maxsize)))
    return dict(zip(judged, values.tolist(), strict=True))


def _counts(measure: Any, relevant: Relevant) -> NDArray[Any]:
    if measure.NAME == "NumQ":
        return np.ones(relevant.n_queries)
    if measure.NAME == "NumRel":
        return relevant.totals.astype(np.float64)
    return relevant.found(sys.maxsize) if "rel" in measure.params else relevant.hits.astype(np.float64)


def find_relevant(rankings: Rankings, judged: Mapping[str, Mapping[str, int]], *, least: int) -> Relevant:
    """Return the passages of the judged queries with at least the grade `least`; rankings: in order."""
    found = [(row, *pair) for row, grades in enumerate(judged.values()) for pair in grades.items() if pair[1] >= least]
    rows, grades = (np.array([one[column] for one in found], np.int64) for column in (0, 2))
    queries = rows_of_run(rankings, judged)
    ranks = rankings.ranks(queries[rows], [doc_id for _, doc_id, _ in found])
    order = np.lexsort((ranks, rows))
    hits = np.append(np.diff(rankings.starts), 0)[queries]
    return Relevant(rows[order], grades[order], ranks[order], hits)


def keep_judged_hits(rankings: Rankings, judged: Mapping[str, Mapping[str, int]]) -> Rankings:
    """Return rankings, in order, with the hits that are judged."""
    pairs = [(row, doc_id) for row, grades in enumerate(judged.values()) for doc_id in grades]
    queries = rows_of_run(rankings, judged)[np.array([row for row, _ in pairs], np.int64)]
    ranks = rankings.ranks(queries, [doc_id for _, doc_id in pairs])
    is_hit = np.isfinite(ranks)
    is_judged = np.zeros(len(rankings.documents), np.bool_)
    is_judged[rankings.starts[queries[is_hit]] + ranks[is_hit].astype(np.int64) - 1] = True
    return rankings.kept(is_judged)


def rows_of_run(rankings: Rankings, judged: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the row i64[Q] of each judged query in the rankings, -1 if they lack it."""
    rows = {query_id: row for row, query_id in enumerate(rankings.query_ids)}
    return np.array([rows.get(query_id, -1) for query_id in judged], np.int64)
