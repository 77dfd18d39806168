"""Successive halving: rungs that train ever fewer compositions for ever more steps, within the time there is.

Every rung gets an equal share of the time, and the best third of its compositions goes on to the next one (Jamieson and
Talwalkar 2016, with a third instead of a half). The last rung has two or three.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

from attrs import frozen
from scipy.stats import kendalltau

from drkit.errors import DrkitError

# One composition in so many goes on to the next rung; the last rung has no more than this.
KEPT_COMPOSITIONS = 3


@frozen
class Timing:
    """Seconds of what all runs share, of each run apart from its steps, and of each of its steps."""

    shared: float
    per_run: float
    per_step: float

    def seconds(self, compositions: int, steps: int) -> float:
        """Return the seconds of a rung, without what is shared."""
        return compositions * (self.per_run + steps * self.per_step)


@frozen
class Rung:
    """So many compositions, each trained for so many steps, and the expected seconds of all."""

    compositions: int
    steps: int
    seconds: float


def plan_rungs(available: int, seconds: float, timing: Timing, least: int) -> tuple[Rung, ...]:
    """Return the rungs of a search: as many of the available compositions as fit, whose first rung has `least` steps.

    Raises DrkitError if the seconds are too few for two compositions, with what they would need.

    >>> rungs = plan_rungs(100, 900.0, Timing(shared=60.0, per_run=20.0, per_step=0.5), least=20)
    >>> [(rung.compositions, rung.steps) for rung in rungs]
    [(9, 53), (3, 240)]
    """
    left = seconds - timing.shared

    def are_too_many(compositions: int) -> bool:
        return divide(compositions, left, timing)[0].steps < least

    if fitting := bisect_left(range(2, available + 1), True, key=are_too_many):
        return divide(fitting + 1, left, timing)
    given, needed = max(seconds, 0.0) / 3600, (timing.shared + timing.seconds(2, least)) / 3600
    raise DrkitError(
        f"{given:.2g} hours are too few: two compositions of {least:,} steps each take about {needed:.2g} hours. Give "
        f"more hours, fewer steps (--set pretrain.max_steps), or read fewer passages (--set evaluation.passages=5000)"
    )


def divide(compositions: int, seconds: float, timing: Timing) -> tuple[Rung, ...]:
    """Return the rungs that so many compositions go through, each with an equal share of the seconds; steps may be 0.

    >>> [rung.compositions for rung in divide(30, 3600.0, Timing(0.0, 1.0, 1.0))]
    [30, 10, 4, 2]
    """
    sizes = [compositions]
    while sizes[-1] > KEPT_COMPOSITIONS:
        sizes.append(survivors(sizes[-1]))
    share = max(seconds, 0.0) / len(sizes)
    steps = [max(0, math.floor((share / size - timing.per_run) / timing.per_step)) for size in sizes]
    return tuple(Rung(size, most, timing.seconds(size, most)) for size, most in zip(sizes, steps, strict=True))


def survivors(compositions: int) -> int:
    """Return how many of a rung's compositions go on to the next rung."""
    return -(-compositions // KEPT_COMPOSITIONS)


def rank_correlation(one: Mapping[str, float], other: Mapping[str, float]) -> tuple[float | None, int]:
    """Return Kendall's tau-b of the two orders of what both have, and its number; None for fewer than 3, or all equal.

    >>> rank_correlation({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.0})
    (0.333, 3)
    """
    common = [name for name in one if name in other]
    tau = math.nan
    if len(common) > 2:
        tau = float(kendalltau([one[name] for name in common], [other[name] for name in common]).statistic)
    return (None if math.isnan(tau) else round(tau, 3)), len(common)
