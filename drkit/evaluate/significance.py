"""Significance of the difference between two systems: a paired, two-tailed t-test over queries.

`bootstrap_intervals` gives the interval of a system's own mean, over the queries that could have been asked. With many
tests, some differences look significant by chance: Holm's correction keeps the probability of even one such false
rejection at the level of a single test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from drkit.errors import DrkitError
from drkit.evaluate.measures import Scores, is_count


@frozen
class TTest:
    """Mean difference, Student's t and two-tailed p over `queries` pairs; t and p are NaN if it was not tested.

    low, high: confidence interval of the mean difference, by the same distribution (NaN if not tested).
    """

    difference: float
    t: float
    p: float
    queries: int
    low: float = math.nan
    high: float = math.nan


def paired_t_test(values: Mapping[str, float], against: Mapping[str, float], *, level: float = 0.95) -> TTest:
    """Test two systems' per-query values, aligned by query id; `difference` is values minus against.

    level: of the confidence interval.

    Systems with equal values for every query have p = 1. With fewer than two queries, or if all differences are equal,
    so that they have no variance, p is NaN. Values are equal up to rounding (see `rounding`).

    Raises DrkitError if the two were evaluated on different queries.

    >>> paired_t_test({"a": 1.0, "b": 0.5, "c": 0.5}, {"a": 0.5, "b": 0.5, "c": 0.0}).p.__round__(4)
    0.1835
    """
    from scipy.stats import ttest_rel

    if values.keys() != against.keys():
        unmatched = sorted(values.keys() ^ against.keys())
        raise DrkitError(
            f"the two systems were evaluated on different queries ({len(unmatched)} belong to only one of them, such "
            f"as {unmatched[0]!r}); evaluate both against the same judgements"
        )
    ids = sorted(values)
    ours, theirs = (np.array([one[i] for i in ids], dtype=np.float64) for one in (values, against))
    differences, count = ours - theirs, len(ours)
    difference = float(differences.mean()) if count else math.nan
    error = rounding([*ours, *theirs])
    if count > 1 and np.abs(differences).max() <= error:
        return TTest(0.0, 0.0, 1.0, count, 0.0, 0.0)
    if count < 2 or np.ptp(differences) <= error:
        return TTest(difference, math.nan, math.nan, count)
    found = ttest_rel(ours, theirs)
    interval = found.confidence_interval(level)
    ends = float(interval.low), float(interval.high)
    return TTest(difference, float(found.statistic), float(found.pvalue), count, *ends)


# The probability with which a gain is to be shown.
_POWER = 0.8


def detectable_gain(values: Mapping[str, float], against: Mapping[str, float], queries: int, *, level: float) -> float:
    """Return the mean difference that an interval of this level shows with a probability of 80 %.

    queries: of the test that is planned; their differences are taken to vary as those of these two systems do.

    >>> some, other = {str(i): float(i % 2) for i in range(100)}, {str(i): 0.0 for i in range(100)}
    >>> round(detectable_gain(some, other, 50, level=0.95), 2)
    0.2
    """
    from scipy.stats import t

    spread = np.std([value - against[query] for query, value in values.items()], ddof=1)
    return float((t.ppf((1 + level) / 2, queries - 1) + t.ppf(_POWER, queries - 1)) * spread / math.sqrt(queries))


def rounding(values: Iterable[float]) -> float:
    """Return the difference up to which values of measures are equal: a billionth of the largest one.

    Sums and quotients differ by far less, such as .3 - .2 and .1 - 0 of P@10; no measure has steps so small.
    """
    return 1e-9 * max(map(abs, values), default=0.0)


RESAMPLES = 2000


def bootstrap_intervals(
    values: Sequence[Mapping[str, float]], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[tuple[float, float]]:
    """Return the 95 % percentile bootstrap interval over queries of each system's mean, as (low, high).

    values: per system, the value of each query. Every resample draws the same queries for all systems. A single query
    gives NaN.

    Raises DrkitError if the systems were evaluated on different queries.

    >>> bootstrap_intervals([{"a": 0.5, "b": 0.5}])
    [(0.5, 0.5)]
    """
    from scipy.stats import bootstrap

    if any(one.keys() != values[0].keys() for one in values[1:]):
        raise DrkitError("the systems were evaluated on different queries; evaluate all with the same judgements")
    ids = sorted(values[0]) if values else []
    if len(ids) < 2:
        return [(math.nan, math.nan)] * len(values)
    rows = np.array([[one[i] for i in ids] for one in values], dtype=np.float64)
    found: Any = bootstrap(
        (rows,),
        np.mean,
        axis=1,
        n_resamples=resamples,
        batch=max(1, 4_000_000 // rows.size),
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return [(float(low), float(high)) for low, high in zip(found.low, found.high, strict=True)]


def mean_intervals(systems: Sequence[Scores], measure: str) -> list[tuple[float, float]]:
    """Return the 95 % bootstrap interval of each system's `Scores.mean`; see `bootstrap_intervals`."""
    found = bootstrap_intervals([one.per_query[measure] for one in systems])
    scale = systems[0].queries if systems and is_count(measure) else 1
    return [(low * scale, high * scale) for low, high in found]


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests; NaN (not tested) stays NaN and does not count as a test.

    The i-th smallest of m p-values is multiplied by m - i + 1, then made at least as large as the corrected p of every
    smaller one, and at most 1. Rejecting if the corrected p is below 0.05 keeps the probability of any false rejection
    among all tests below 0.05, however the tests depend on each other.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted((i for i, p in enumerate(p_values) if not math.isnan(p)), key=lambda i: p_values[i])
    corrected, largest = list(p_values), 0.0
    for rank, i in enumerate(order):
        corrected[i] = largest = max(largest, min(1.0, (len(order) - rank) * p_values[i]))
    return corrected
