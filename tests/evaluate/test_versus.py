"""Comparisons: Holm by hand and by its definition, wins and losses, intervals, averages over draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.files import json_text
from drkit.core.types import Judgement
from drkit.errors import DrkitError
from drkit.evaluate import Change, Scores, average, compare, comparison, cutoff, evaluate, holm, versus_markdown
from drkit.evaluate.measures import write_per_query
from drkit.evaluate.systems import format_value


def test_holm_by_hand():
    """Four tests: .01 x 4, .02 x 3, .03 x 2, then .04 x 1, which may not be below the one before."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
    with_none = holm([0.02, math.nan, 0.03])
    assert with_none[0] == 0.04
    assert math.isnan(with_none[1])


def rejected(p_values, level):
    """Holm's procedure as it is written: the smallest p against level / m, the next against level / (m - 1), ..."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    out = set()
    for rank, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - rank):
            break
        out.add(index)
    return out


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.2))
def test_holm_rejects_what_the_stepwise_procedure_rejects(p_values, level):
    corrected = holm(p_values)
    ours = {index for index, p in enumerate(corrected) if p <= level}
    # (A corrected p may differ from the level by rounding alone.)
    unsure = {index for index, p in enumerate(corrected) if math.isclose(p, level)}
    assert ours - unsure <= rejected(p_values, level) | unsure
    assert rejected(p_values, level) - unsure <= ours
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_equals_statsmodels(p_values):
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="statsmodels is not installed")
    assert holm(p_values) == pytest.approx(multitest.multipletests(p_values, method="holm")[1])


def scores(**values):
    return Scores({"RR@10": {f"q{i}": v for i, v in enumerate(values["rr"])}})


A = scores(rr=[0.0, 0.5, 1.0, 0.2, 0.2])
B = scores(rr=[1.0, 0.5, 0.5, 0.4, 0.3])
C = scores(rr=[1.0, 1.0, 1.0, 1.0, 0.1])


def test_every_system_is_held_against_the_first_or_against_all():
    found = compare([("a", A), ("b", B), ("c", C)])
    assert [(one.system, one.baseline) for one in found] == [("b", "a"), ("c", "a")]
    assert [one.corrected for one in found] == holm([one.test.p for one in found])
    pairs = compare([("a", A), ("b", B), ("c", C)], all_pairs=True)
    assert [(one.system, one.baseline) for one in pairs] == [("b", "a"), ("c", "a"), ("c", "b")]


def test_wins_ties_losses_and_the_queries_that_differ_most():
    (found,) = compare([("a", A), ("b", B)], shown=2)
    assert (found.wins, found.ties, found.losses) == (3, 1, 1)
    assert found.gained == (Change("q0", 0.0, 1.0), Change("q3", 0.2, 0.4))
    assert found.lost == (Change("q2", 1.0, 0.5),)
    assert found.test.difference == pytest.approx(found.value - found.against)
    assert compare([("a", A), ("b", B)], shown=0)[0].gained == ()
    (same,) = compare([("a", A), ("b", A)])
    assert (same.wins, same.ties, same.losses, same.test.p) == (0, 5, 0, 1.0)


def test_the_interval_is_the_formula():
    from scipy.stats import t as student

    rng = np.random.default_rng(1)
    one, two = (Scores({"AP": {str(i): float(v) for i, v in enumerate(rng.random(30))}}) for _ in range(2))
    (found,) = compare([("one", one), ("two", two)])
    apart = np.array([two.per_query["AP"][q] - one.per_query["AP"][q] for q in one.per_query["AP"]])
    half = student.ppf(0.975, 29) * apart.std(ddof=1) / math.sqrt(30)
    assert (found.test.low, found.test.high) == pytest.approx((apart.mean() - half, apart.mean() + half))


def test_markdown_says_what_was_tested_and_names_queries_with_their_text():
    text = versus_markdown(compare([("a", A), ("b|x", B)]), {"q0": "who\nwrote it"})
    assert r"| RR@10 | b\|x (0.540) | a (0.380) | +0.160 |" in text
    assert "+1.000 (0.000 -> 1.000) q0: who wrote it" in text
    assert "-0.500 (1.000 -> 0.500) q2\n" in text + "\n"
    assert "over 5 queries; Holm's correction over all 1 comparisons" in text


def test_what_cannot_be_compared_is_told():
    with pytest.raises(DrkitError, match=r"1 system; .*two"):
        compare([("a", A)])
    with pytest.raises(DrkitError, match=r"two .*'a';"):
        compare([("a", A), ("a", B)])
    with pytest.raises(DrkitError, match="'b' has no RR@10"):
        compare([("a", A), ("b", Scores({"AP": {"q0": 1.0}}))])
    with pytest.raises(DrkitError, match="different queries"):
        compare([("a", A), ("b", Scores({"RR@10": {"other": 1.0}}))])


def test_a_table_marks_what_holds_after_correction():
    rng = np.random.default_rng(0)
    base = {f"q{i}": float(v) for i, v in enumerate(rng.random(200) / 2)}
    noise = {q: v + float(rng.normal(0.003, 0.02)) for q, v in base.items()}
    better = {q: v + 0.2 + float(rng.normal(0, 0.1)) for q, v in noise.items()}
    rows = comparison([(name, Scores({"AP": v})) for name, v in (("a", base), ("b", noise), ("c", better))])
    assert rows[0].corrected == {}
    assert [rows[i].corrected["AP"] for i in (1, 2)] == holm([rows[i].tests["AP"].p for i in (1, 2)])
    assert format_value(rows[2].values["AP"], rows[2].tests["AP"].p, rows[2].corrected["AP"]).endswith("(p < 0.001*)")


def test_the_average_of_draws_is_taken_query_by_query():
    mean = average([A, B, C])
    for query, value in mean.per_query["RR@10"].items():
        assert value == pytest.approx(sum(s.per_query["RR@10"][query] for s in (A, B, C)) / 3)
    assert mean.mean("RR@10") == pytest.approx(sum(s.mean("RR@10") for s in (A, B, C)) / 3)
    assert average([A]) == A
    with pytest.raises(DrkitError, match=r"average .*runs"):
        average([])
    with pytest.raises(DrkitError, match="different queries"):
        average([A, scores(rr=[1.0])])
    with pytest.raises(DrkitError, match="different measures"):
        average([A, Scores({"AP": A.per_query["RR@10"]})])


def test_scores_that_are_no_numbers_and_grades_beyond_reason_are_refused():
    with pytest.raises(DrkitError, match=r"'q': .*'b' .*finite"):
        evaluate([("q", [("a", 1.0), ("b", math.nan)])], [Judgement("q", "a", 1)])
    with pytest.raises(DrkitError, match=r"'a' .*2000000000 .*'q'; .*1,000,000"):
        evaluate([("q", [("a", 1.0)])], [Judgement("q", "a", 2_000_000_000)])


def test_a_measure_says_how_far_it_looks():
    assert [cutoff(name) for name in ("RR@10", "nDCG@3", "AP", "P(rel=2)@5")] == [10, 3, None, 5]


def test_values_are_written_for_every_query(tmp_path):
    write_per_query(tmp_path / "v.tsv", [("a", A), ("b", B)])
    lines = (tmp_path / "v.tsv").read_text().splitlines()
    assert lines[0] == "system\tquery_id\tRR@10"
    assert lines[6] == "b\tq0\t1.0"
    assert json_text({"x": [math.inf, 1.0]}) == '{\n  "x": [\n    null,\n    1.0\n  ]\n}\n'
