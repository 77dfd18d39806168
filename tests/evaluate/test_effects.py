"""Effects of a factorial design, against sums by hand and against simulated studies."""

import math

import numpy as np
import pytest
from scipy.stats import t

from drkit.evaluate.effects import estimate_mean, factorial_effects


def test_an_interval_over_seeds_and_queries_computed_by_hand():
    found = estimate_mean(np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]]))
    # Means: 2.5; of seeds 2, 3; of queries 1.5, 2, 4. Mean squares: 3 x (.25 + .25) / 1 = 1.5 of seeds,
    # 2 x (1 + .25 + 2.25) / 2 = 3.5 of queries, (0 + .25 + .25 + 0 + .25 + .25) / 2 = .5 of the rest.
    error, freedom = math.sqrt((1.5 + 3.5 - 0.5) / 6), 4.5**2 / (1.5**2 / 1 + 3.5**2 / 2 + 0.5**2 / 2)
    assert found.mean == 2.5
    assert found.high - found.mean == pytest.approx(t.ppf(0.975, freedom) * error)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert found.p == pytest.approx(2 * t.sf(2.5 / error, freedom))


def test_seeds_that_do_not_differ_add_nothing_to_the_interval():
    one = np.array([[0.5, -0.5, 1.0, 0.25]])
    assert estimate_mean(np.vstack([one, one])).high == pytest.approx(estimate_mean(one).high)


def test_nothing_differs_and_a_single_query():
    same = estimate_mean(np.zeros((2, 3)))
    assert (same.mean, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)
    single = estimate_mean(np.array([[0.5]]))
    assert single.mean == 0.5
    assert all(map(math.isnan, (single.low, single.high, single.p)))


@pytest.mark.parametrize(("of_seeds", "of_queries"), [(0.0, 1.0), (0.3, 1.0), (0.0, 0.0)])
def test_nineteen_of_twenty_intervals_hold_the_true_mean(of_seeds, of_queries):
    draws, hits = np.random.default_rng(7), 0
    for _ in range(600):
        noise = draws.normal(0, of_seeds, (4, 1)) + draws.normal(0, of_queries, (1, 40))
        values = 0.2 + noise + draws.normal(0, 1, (4, 40))
        found = estimate_mean(values)
        hits += found.low <= 0.2 <= found.high
    assert hits / 600 >= 0.925


def test_effects_of_three_factors_are_differences_averaged_over_the_others():
    draws = np.random.default_rng(1)
    values = draws.normal(size=(2, 3, 2, 4, 5))
    factors = {"a": ["a0", "a1"], "b": ["b0", "b1", "b2"], "c": ["c0", "c1"]}
    found = {str(effect): effect for effect in factorial_effects(factors, values)}
    assert len(found) == 1 + 2 + 1 + 2 + 1 + 2

    def mean(**levels):
        cells = [
            values[a, b, c].mean()
            for a in range(2)
            for b in range(3)
            for c in range(2)
            if all({"a": a, "b": b, "c": c}[name] == level for name, level in levels.items())
        ]
        return sum(cells) / len(cells)

    assert found["b2 instead of b0"].estimate.mean == pytest.approx(mean(b=2) - mean(b=0))
    beyond = (mean(b=2, c=1) - mean(b=0, c=1)) - (mean(b=2, c=0) - mean(b=0, c=0))
    assert found["b2 with c1, beyond b2 with c0"].estimate.mean == pytest.approx(beyond)
    assert all(effect.corrected >= effect.estimate.p for effect in found.values())
    assert found["a1 instead of a0"].estimate.queries == 5
