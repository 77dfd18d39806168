"""Is the difference between two systems more than luck? A paired, two-tailed t-test over queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from attrs import frozen

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@frozen
class TTest:
    """Mean difference, Student's t and the two-tailed p of `queries` pairs; `reason`, where p could not be tested."""

    difference: float
    t: float
    p: float
    queries: int
    reason: str = ""


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


def _test(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> TTest:
    from scipy.stats import ttest_rel

    apart, count = ours - theirs, len(ours)
    difference = float(apart.mean()) if count else math.nan
    if count < 2:
        return TTest(difference, math.nan, math.nan, count, "a t-test needs at least two queries")
    if not apart.any():
        return TTest(0.0, 0.0, 1.0, count, "the systems agree on every query")
    if np.ptp(apart) == 0:
        return TTest(difference, math.copysign(math.inf, difference), 0.0, count, "all queries differ by the same")
    found = ttest_rel(ours, theirs)
    return TTest(difference, float(found.statistic), float(found.pvalue), count)
