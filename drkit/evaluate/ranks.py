"""The measures of trec_eval that the ranks of relevant passages decide, for all queries at once."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from attrs import frozen
from numpy.typing import NDArray


@frozen(eq=False, slots=False)
class Relevant:
    """The relevant passages of Q queries, those of each query in order of rank; every measure returns f64[Q].

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
        return self._sum(1 / self.ranks, (self._places == 1) & (self.ranks <= cutoff))

    def average_precision(self, cutoff: float) -> NDArray[np.float64]:
        """Return the mean of the precision at each relevant passage, 0 at those that are not among the first hits."""
        return self._sum(self._places / self.ranks, self.ranks <= cutoff) / self._totals

    def ndcg(self, cutoff: float) -> NDArray[np.float64]:
        """Return the discounted sum of the grades, as a share of that of the best possible ranking."""
        best = np.lexsort((-self.grades, self.rows))
        ideal = Relevant(self.rows, self.grades[best], self._places, self.n_queries)
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
    def _places(self) -> NDArray[np.float64]:
        """From 1, the number of each passage among those of its query."""
        return np.arange(1.0, len(self.rows) + 1) - np.searchsorted(self.rows, self.rows)

    @cached_property
    def _totals(self) -> NDArray[np.int64]:
        return np.maximum(np.bincount(self.rows, minlength=self.n_queries), 1)
