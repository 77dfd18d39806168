"""The t-test by its formula, its degenerate cases, and the table."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from drkit.errors import DrkitError
from drkit.evaluate import Scores, comparison, paired_t_test, to_markdown


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


def test_rows_are_tested_against_the_row_above():
    systems = [
        ("BM25", Scores({"RR@10": {"a": 0.0, "b": 0.5, "c": 1.0}, "AP": {"a": 0.1, "b": 0.2, "c": 0.3}})),
        ("one|two", Scores({"RR@10": {"a": 0.5, "b": 0.5, "c": 1.0}, "AP": {"a": 0.1, "b": 0.2, "c": 0.3}})),
        ("last", Scores({"RR@10": {"a": 0.0, "b": 0.0, "c": 0.0}, "AP": {"a": 0.0, "b": 0.1, "c": 0.1}})),
    ]
    rows = comparison(systems)
    assert [row.system for row in rows] == ["BM25", "one|two", "last"]
    assert rows[0].tests == {}
    assert rows[2].tests["RR@10"] == paired_t_test(systems[2][1].per_query["RR@10"], systems[1][1].per_query["RR@10"])
    text = to_markdown(rows).splitlines()
    assert text[0] == "| system | RR@10 | AP |"
    assert text[3] == r"| one\|two | 0.667 (p = 0.423) | 0.200 (p = 1.000) |"
    assert len(text) == 5
    with pytest.raises(DrkitError, match="'odd' has no RR@10"):
        comparison([systems[0], ("odd", Scores({"AP": {"a": 0.0, "b": 0.1, "c": 0.1}}))])
    assert comparison([]) == []
