from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from drkit.core.draws import Draws

KINDS = {
    "uniform": lambda d, *shape: d.uniform(*shape),
    "normal": lambda d, *shape: d.normal(*shape),
    "coins": lambda d, *shape: d.coins(0.3, *shape),
    "integers": lambda d, *shape: d.integers(1000, *shape),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_has_the_same_number_whatever_the_shape_and_the_batch(kind):
    draw = KINDS[kind]
    big = draw(Draws(3, 1, [5, 6, 7]), 9, 13)
    for rows, length in ((9, 13), (4, 12), (1, 1), (3, 7)):
        small = draw(Draws(3, 1, [7, 5]), rows, length)
        assert np.array_equal(small, big[[2, 0], :rows, :length])
    assert np.array_equal(draw(Draws(3, 1, [5]), 200)[:, :60], draw(Draws(3, 1, [5]), 60))


@pytest.mark.parametrize("kind", KINDS)
def test_seed_epoch_key_and_call_each_make_another_draw(kind):
    draw, first = KINDS[kind], Draws(3, 1, [5])
    drawn = [draw(first, 64), draw(first, 64), *(draw(Draws(*given), 64) for given in ((4, 1, [5]), (3, 2, [5])))]
    drawn.append(draw(Draws(3, 1, [6]), 64))
    assert all(not np.array_equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_distributions():
    d = Draws(0, 0, np.arange(50))
    assert stats.kstest(d.uniform(20, 100).ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(d.normal(20, 100).ravel(), "norm").pvalue > 1e-3
    flat = d.normal(20, 101)
    assert abs(np.corrcoef(flat[..., 0:100:2].ravel(), flat[..., 1:101:2].ravel())[0, 1]) < 0.02
    assert stats.chisquare(np.bincount(d.integers(7, 20, 100).ravel(), minlength=7)).pvalue > 1e-3
    assert d.coins(0.25, 40, 100).mean() == pytest.approx(0.25, abs=0.005)
    assert d.uniform(1000).max() < 1
    assert d.uniform(1000).min() >= 0


def test_sure_coins_and_single_numbers():
    d = Draws(0, 0, [1, 2])
    assert d.coins(1.0, 3).all()
    assert not d.coins(0.0, 3).any()
    assert d.uniform().shape == d.normal().shape == d.integers(5).shape == (2,)
    assert d.uniform(0).shape == (2, 0)
    assert d.normal(3, 0).shape == (2, 3, 0)


def test_places_and_keys_are_not_correlated():
    u = Draws(1, 0, np.arange(400)).uniform(50)
    assert np.abs(np.corrcoef(u.T) - np.eye(50)).max() < 0.25
    assert np.abs(np.corrcoef(u[:50]) - np.eye(50)).max() < 0.75
