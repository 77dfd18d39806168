"""Effects of a factorial design: what each level of a factor adds, and whether two factors depend on each other.

An effect is a difference of means over cells, computed for each seed and each query. Its interval treats both as random
(`estimate_mean`): another study would have other seeds, and other queries would be asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from attrs import evolve, frozen

from drkit.evaluate.significance import holm, rounding

Array = np.ndarray[Any, np.dtype[np.float64]]


@frozen
class Estimate:
    """A mean with its 95 % confidence interval and the two-tailed p that it is 0.

    seeds: with a single one, the interval and p are over queries alone. NaN where there is no variance to tell by.
    """

    mean: float
    low: float
    high: float
    p: float
    seeds: int
    queries: int


@frozen
class Effect:
    """What levels add, averaged over the levels of all other factors.

    levels: the level of one factor (a main effect) or of two (an interaction), by factor; baselines: the first level of
    each. An interaction is the effect of the first factor's level at the second's level, minus the same at the second's
    baseline. corrected: p after Holm's correction over all effects of the design.
    """

    levels: Mapping[str, str]
    baselines: Mapping[str, str]
    estimate: Estimate
    corrected: float = math.nan

    @property
    def is_interaction(self) -> bool:
        """Whether the effect is of two factors together."""
        return len(self.levels) > 1

    def __str__(self) -> str:
        """The effect in words: `pmi instead of uniform`, `pmi with enhanced, beyond pmi with mlm`."""
        if not self.is_interaction:
            ((factor, level),) = self.levels.items()
            return f"{level} instead of {self.baselines[factor]}"
        (_, level), (second, other) = self.levels.items()
        return f"{level} with {other}, beyond {level} with {self.baselines[second]}"


def estimate_mean(values: Array) -> Estimate:
    """Estimate a mean over seeds and queries that are both random. values: f64[seeds, queries].

    The variance of the mean is that of the two-way layout without replication, from the mean squares of seeds (S),
    queries (Q) and the rest (E): (MS_S + MS_Q - MS_E) / (seeds x queries), with Satterthwaite's degrees of freedom. A
    component of variance that would be negative is 0. With one seed, it is the t interval over queries.

    Source: Clark 1973, The language-as-fixed-effect fallacy (quasi-F); Satterthwaite 1946.

    >>> found = estimate_mean(np.array([[1.0, 2.0, 3.0]]))
    >>> found.mean, round(found.low, 3), round(found.high, 3), round(found.p, 3)
    (2.0, -0.484, 4.484, 0.074)
    """
    from scipy.stats import t

    seeds, queries = values.shape
    mean = float(values.mean()) if queries else math.nan
    if queries > 1 and np.abs(values).max() == 0:
        return Estimate(0.0, 0.0, 0.0, 1.0, seeds, queries)
    square, freedom = _square_of_mean(values) if queries > 1 else (math.nan, math.nan)
    if not square > (rounding(values.ravel()) ** 2):
        return Estimate(mean, math.nan, math.nan, math.nan, seeds, queries)
    error = math.sqrt(square / (seeds * queries))
    half = float(t.ppf(0.975, freedom)) * error
    return Estimate(mean, mean - half, mean + half, float(2 * t.sf(abs(mean) / error, freedom)), seeds, queries)


def _square_of_mean(values: Array) -> tuple[float, float]:
    """Return the variance of the mean, times the number of values, and its degrees of freedom."""
    seeds, queries = values.shape
    by_query = values.mean(axis=0, keepdims=True)
    of_queries = seeds * float(by_query.var(ddof=1))
    if seeds == 1:
        return of_queries, queries - 1
    by_seed = values.mean(axis=1, keepdims=True)
    of_seeds = queries * float(by_seed.var(ddof=1))
    rest = values - by_seed - by_query + values.mean()
    error = float((rest**2).sum()) / ((seeds - 1) * (queries - 1))
    if error >= min(of_seeds, of_queries):
        return (of_queries, queries - 1) if of_queries >= of_seeds else (of_seeds, seeds - 1)
    total = of_seeds + of_queries - error
    spread = of_seeds**2 / (seeds - 1) + of_queries**2 / (queries - 1) + error**2 / ((seeds - 1) * (queries - 1))
    return total, total**2 / spread


def factorial_effects(factors: Mapping[str, Sequence[str]], values: Array) -> list[Effect]:
    """Return every main effect and every two-way interaction of a design, each level against its factor's first.

    factors: the levels of each factor, in the order of the first dimensions of `values`; values: f64[levels of the
    first factor, .., seeds, queries].

    >>> found = factorial_effects({"masker": ["uniform", "pmi"]}, np.array([[[0.0, 0.5, 0.1]], [[1.0, 0.5, 0.6]]]))
    >>> print(found[0], round(found[0].estimate.mean, 3))
    pmi instead of uniform 0.5
    """
    names, found = list(factors), []
    for one in range(len(names)):
        found += [_effect(factors, values, {one: level}) for level in range(1, len(factors[names[one]]))]
    for one, other in combinations(range(len(names)), 2):
        levels = (range(1, len(factors[names[axis]])) for axis in (one, other))
        found += [_effect(factors, values, {one: first, other: second}) for first, second in product(*levels)]
    corrected = holm([effect.estimate.p for effect in found])
    return [evolve(effect, corrected=p) for effect, p in zip(found, corrected, strict=True)]


def _effect(factors: Mapping[str, Sequence[str]], values: Array, chosen: Mapping[int, int]) -> Effect:
    """Return the effect of a level of one axis, or of two; chosen: the level by axis."""
    names, differences = list(factors), values
    for axis, level in chosen.items():
        differences = differences.take([level], axis=axis) - differences.take([0], axis=axis)
    averaged = differences.mean(axis=tuple(range(len(names))))
    return Effect(
        {names[axis]: factors[names[axis]][level] for axis, level in chosen.items()},
        {names[axis]: factors[names[axis]][0] for axis in chosen},
        estimate_mean(averaged),
    )
