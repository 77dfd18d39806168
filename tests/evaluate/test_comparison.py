"""The t-test by its formula, its degenerate cases, and the table."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from drkit.errors import DrkitError, UnknownNameError
from drkit.evaluate import Scores, average, compare, comparison, paired_t_test, to_markdown, versus_markdown
from tests.refusals import says


def test_the_t_test_is_the_formula_whatever_the_order_of_queries():
    rng = np.random.default_rng(0)
    ours = {f"q{i}": float(v) for i, v in enumerate(rng.random(40))}
    theirs = {q: ours[q] * 0.7 + float(rng.random()) * 0.2 for q in reversed(list(ours))}
    apart = np.array([ours[q] - theirs[q] for q in ours])
    t = apart.mean() / (apart.std(ddof=1) / math.sqrt(40))
    found = paired_t_test(ours, theirs)
    assert (found.difference, found.t) == pytest.approx((apart.mean(), t))
    assert found.p == pytest.approx(2 * student.sf(abs(t), 39))
    assert paired_t_test(theirs, ours).t == pytest.approx(-t)


def test_degenerate_cases_have_no_p():
    same = {"a": 0.5, "b": 0.25}
    assert paired_t_test(same, dict(same)).p == 1.0
    one = paired_t_test({"a": 1.0}, {"a": 0.0})
    assert math.isnan(one.p)
    assert math.isnan(paired_t_test({}, {}).p)
    shifted = paired_t_test({"a": 1.0, "b": 0.5}, {"a": 0.5, "b": 0.0})
    assert math.isnan(shifted.p)
    assert math.isnan(shifted.low)
    with pytest.raises(DrkitError, match="different queries"):
        paired_t_test({"a": 1.0}, {"b": 1.0})


@pytest.mark.filterwarnings("error")
@given(st.lists(st.integers(0, 9), min_size=2, max_size=8), st.sampled_from([3, 7, 10]))
def test_the_same_gain_of_every_query_has_no_variance(hits, cutoff):
    """One hit more at P@10: .3 - .2 is not .1, so that the differences vary by rounding alone."""
    before = {str(i): count / cutoff for i, count in enumerate(hits)}
    after = {str(i): (count + 1) / cutoff for i, count in enumerate(hits)}
    found = paired_t_test(after, before)
    assert found.difference == pytest.approx(1 / cutoff)
    assert all(math.isnan(value) for value in (found.t, found.p, found.low, found.high))
    (versus,) = compare([("a", Scores({"P@10": before})), ("b", Scores({"P@10": after}))])
    assert (versus.wins, versus.ties, versus.losses) == (len(hits), 0, 0)
    assert math.isnan(versus.corrected)
    assert says(versus_markdown([versus]), "not tested", "over all 0 comparisons", "same difference for every query")


@pytest.mark.filterwarnings("error")
@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.integers(2, 7))
def test_values_that_rounding_alone_sets_apart_are_ties(values, draws):
    """The mean of draws with one value is not always that value."""
    one = Scores({"AP": {str(i): value for i, value in enumerate(values)}})
    mean = average([one] * draws)
    (found,) = compare([("one", one), ("mean", mean)])
    assert (found.wins, found.ties, found.losses, found.gained, found.lost) == (0, len(values), 0, (), ())
    assert (found.test.p, found.test.low, found.test.high) == (1.0, 0.0, 0.0)


def test_a_small_but_real_difference_is_tested():
    before = {str(i): 1 / (990 + i) for i in range(4)}
    after = {str(i): 1 / (989 + i) for i in range(4)}
    assert paired_t_test(after, before).p < 0.05


def test_the_difference_of_a_count_is_that_of_its_sums():
    before, after = {"a": 3.0, "b": 1.0, "c": 0.0}, {"a": 5.0, "b": 1.0, "c": 1.0}
    (found,) = compare([("a", Scores({"NumRet": before})), ("b", Scores({"NumRet": after}))])
    assert (found.against, found.value, found.test.difference) == pytest.approx((4.0, 7.0, 3.0))
    plain = paired_t_test(after, before)
    assert (found.test.low, found.test.high, found.test.p) == pytest.approx((3 * plain.low, 3 * plain.high, plain.p))


def test_rows_are_tested_against_the_baseline_which_is_the_first_unless_it_is_named():
    systems = [
        ("BM25", Scores({"RR@10": {"a": 0.0, "b": 0.5, "c": 1.0}, "AP": {"a": 0.1, "b": 0.2, "c": 0.3}})),
        ("one|two", Scores({"RR@10": {"a": 0.5, "b": 0.5, "c": 1.0}, "AP": {"a": 0.1, "b": 0.2, "c": 0.3}})),
        ("last", Scores({"RR@10": {"a": 0.0, "b": 0.0, "c": 0.0}, "AP": {"a": 0.0, "b": 0.1, "c": 0.1}})),
    ]
    rows = comparison(systems)
    assert [row.system for row in rows] == ["BM25", "one|two", "last"]
    assert rows[0].tests == {}
    assert rows[2].tests["RR@10"] == paired_t_test(systems[2][1].per_query["RR@10"], systems[0][1].per_query["RR@10"])
    named = comparison(systems, "one|two")
    assert [bool(row.tests) for row in named] == [True, False, True]
    assert named[0].tests["AP"] == paired_t_test(systems[0][1].per_query["AP"], systems[1][1].per_query["AP"])
    with pytest.raises(UnknownNameError, match="'lost'"):
        comparison(systems, "lost")
    text = to_markdown(rows).splitlines()
    assert text[0] == "| system | RR@10 | AP |"
    assert text[3] == r"| one\|two | 0.667 (p = 0.423) | 0.200 (p = 1.000) |"
    assert len(text) == 5
    with pytest.raises(DrkitError, match="'odd' has no RR@10"):
        comparison([systems[0], ("odd", Scores({"AP": {"a": 0.0, "b": 0.1, "c": 0.1}}))])
    assert comparison([]) == []
