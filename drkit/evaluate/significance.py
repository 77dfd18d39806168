"""Is the difference between two systems more than luck? A paired, two-tailed t-test over queries.

Whoever tests often finds something by luck alone: Holm's correction keeps the chance of even one such find at the level
of a single test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@frozen
class TTest:
    """Mean difference, Student's t and the two-tailed p of `queries` pairs; `reason`, where p could not be tested.

    low, high: where the mean difference lies with 95 % confidence, by the same distribution (NaN where not tested).
    """

    difference: float
    t: float
    p: float
    queries: int
    reason: str = ""
    low: float = math.nan
    high: float = math.nan


def paired_t_test(values: Mapping[str, float], against: Mapping[str, float]) -> TTest:
    """Compare two systems' per-query values, aligned by query id; `difference` is values minus against.

    Systems with the same value for every query have p = 1. Fewer than two queries give nan, and the reason.

    Raises DrkitError where the two were not evaluated on the same queries.

    >>> paired_t_test({"a": 1.0, "b": 0.5, "c": 0.5}, {"a": 0.5, "b": 0.5, "c": 0.0}).p.__round__(4)
    0.1835
    """
    if values.keys() != against.keys():
        apart = sorted(values.keys() ^ against.keys())
        raise DrkitError(
            f"the two systems were evaluated on different queries ({len(apart)} are in one only, the first: "
            f"{apart[0]!r}); evaluate both against the same judgements"
        )
    ids = sorted(values)
    ours = np.array([values[i] for i in ids], dtype=np.float64)
    return _test(ours, np.array([against[i] for i in ids], dtype=np.float64))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected p of each of several tests, in their order; NaN (not tested) stays and does not count.

    The i-th smallest of m is multiplied by m - i + 1, no corrected p is below that of a smaller one, and none is
    above 1. Rejecting where the corrected p is below 0.05 keeps the chance of any false rejection among all tests
    below 0.05, however they depend on each other.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted((place for place, p in enumerate(p_values) if not math.isnan(p)), key=lambda place: p_values[place])
    corrected, above = list(p_values), 0.0
    for rank, place in enumerate(order):
        corrected[place] = above = max(above, min(1.0, (len(order) - rank) * p_values[place]))
    return corrected


def _test(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> TTest:
    from scipy.stats import ttest_rel

    apart, count = ours - theirs, len(ours)
    difference = float(apart.mean()) if count else math.nan
    if count < 2:
        return TTest(difference, math.nan, math.nan, count, "a t-test needs at least two queries")
    if not apart.any():
        return TTest(0.0, 0.0, 1.0, count, "the systems agree on every query", 0.0, 0.0)
    if np.ptp(apart) == 0:
        t = math.copysign(math.inf, difference)
        return TTest(difference, t, 0.0, count, "all queries differ by the same", difference, difference)
    found = ttest_rel(ours, theirs)
    between = found.confidence_interval(0.95)
    return TTest(
        difference, float(found.statistic), float(found.pvalue), count, low=float(between.low), high=float(between.high)
    )
