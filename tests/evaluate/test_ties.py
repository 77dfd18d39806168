"""The range of a mean over orders of tied hits: that of all permutations, by trying them."""

from __future__ import annotations

from itertools import groupby, permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.commands.evaluation import JudgedQueries, System, evaluate_files
from drkit.core.types import Judgement
from drkit.evaluate import TieRange, evaluate, order_bounds, tie_ranges
from drkit.evaluate.ties import describe_ties, tie_lines
from drkit.search import write_run

MEASURES = ["RR@2", "nDCG@3", "nDCG", "P@2", "R@2", "AP", "AP(rel=2)", "Success@1", "ERR@3", "P(judged_only=True)@2"]
DOCUMENTS = "abcde"
HITS = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 2).map(float), min_size=1)
GRADES = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(-1, 3), min_size=1)


def orders(hits):
    """Yield all orders of hits by score, best first."""
    ordered = sorted(hits.items(), key=lambda hit: -hit[1])
    groups = [[doc for doc, _ in group] for _, group in groupby(ordered, key=lambda hit: hit[1])]
    for choice in product(*(permutations(group) for group in groups)):
        yield [doc for group in choice for doc in group]


@settings(max_examples=40, deadline=None)
@given(HITS, GRADES)
def test_bounds_are_the_lowest_and_the_highest_value_of_all_orders(hits, grades):
    judged = [Judgement("q", doc, grade) for doc, grade in grades.items()]
    worst, best = order_bounds([("q", list(hits.items()))], judged, MEASURES)
    values = [
        evaluate([("q", [(doc, -float(rank)) for rank, doc in enumerate(order)])], judged, MEASURES).means()
        for order in orders(hits)
    ]
    for measure in MEASURES:
        assert worst.mean(measure) == pytest.approx(min(value[measure] for value in values), abs=1e-12)
        assert best.mean(measure) == pytest.approx(max(value[measure] for value in values), abs=1e-12)


def test_hits_of_different_queries_with_equal_scores_are_not_tied():
    run = [("p", [("a", 1.0)]), ("q", [("a", 1.0), ("b", 1.0), ("q", 1.0)])]
    judged = [Judgement("p", "a", 1), Judgement("q", "b", 1)]
    for exclude_self, low in ((False, 1 / 3), (True, 1 / 2)):
        worst, best = order_bounds(run, judged, ["RR@10"], exclude_self=exclude_self)
        assert worst.per_query["RR@10"] == {"p": 1.0, "q": low}
        assert best.per_query["RR@10"] == {"p": 1.0, "q": 1.0}
    assert tie_ranges((worst, best)) == {"RR@10": TieRange(0.75, 1.0, 1)}


def test_small_ranges_and_counts_are_left_out():
    run = [(f"q{n}", [("a", 1.0), ("b", 1.0 if n == 0 else 0.5)]) for n in range(600)]
    judged = [Judgement(f"q{n}", "a", 1) for n in range(600)]
    bounds = order_bounds(run, judged, ["RR@10", "NumRet", "P@1"])
    assert set(bounds[0].measures) == {"RR@10", "P@1"}
    assert {*tie_ranges(bounds)} == {"P@1"}  # half of one query in 600 is less than 0.001
    assert describe_ties("BM25", {}, 600) == ""


def test_evaluate_notes_the_range_of_a_file(tmp_path):
    path = tmp_path / "ties.trec"
    write_run(path, [("q", [("a", 1.0), ("b", 1.0)])], "ties")
    judged, notes = JudgedQueries((Judgement("q", "a", 1),)), []
    evaluate_files([System("ties", (path,))], judged, ["RR@10"], note=notes.append)
    assert f"{path} has hits with equal scores: by their order, RR@10 is 0.5000 to 1.0000 (1 of 1 queries)" in notes


def test_lines_of_results_name_systems_as_the_table_does():
    results = {"queries": 1000, "ties": {"bm25": {"RR@10": {"low": 0.6209, "high": 0.6313, "queries": 98}}}}
    assert tie_lines(results) == [
        "BM25 has hits with equal scores: by their order, RR@10 is 0.6209 to 0.6313 (98 of 1,000 queries)"
    ]
    assert tie_lines({"queries": 3}) == []
