"""Measures equal trec_eval's on the same files, over all judged queries."""

from __future__ import annotations

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.core.types import Judgement
from drkit.data.qrels import read_qrels, write_qrels
from drkit.errors import DrkitError
from drkit.evaluate import MEASURES, check_measures, evaluate
from drkit.search.run_files import read_run, write_run

NAMES = {
    "nDCG@10": "ndcg_cut_10",
    "nDCG@5": "ndcg_cut_5",
    "P@5": "P_5",
    "AP@10": "map_cut_10",
    "R@5": "recall_5",
    "R@100": "recall_100",
    "R@1000": "recall_1000",
    "AP": "map",
    "RR": "recip_rank",
}
DOCS = [f"d{i}" for i in range(25)]
RUNS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "q4", "unjudged"]),
    # few values: ties are common
    st.dictionaries(st.sampled_from(DOCS), st.sampled_from([0.5, 1.0, 2.0, 0.1]), min_size=1),
)
QRELS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "q4", "missing"]),
    st.dictionaries(st.sampled_from([*DOCS, "never"]), st.integers(0, 3), min_size=1),
    min_size=1,
)


def rows(run):
    return [(query, list(hits.items())) for query, hits in run.items()]


def judgements(qrels):
    return [Judgement(query, doc, grade) for query, grades in qrels.items() for doc, grade in grades.items()]


@given(RUNS, QRELS)
def test_values_are_those_of_trec_eval_on_the_same_files(tmp_path_factory, run, qrels):
    folder = tmp_path_factory.mktemp("evaluate")
    write_run(folder / "run", rows(run), "t")
    write_qrels(folder / "qrels", judgements(qrels))
    ours = evaluate(read_run(folder / "run"), read_qrels(folder / "qrels"), list(NAMES))
    with (folder / "run").open() as run_file, (folder / "qrels").open() as qrels_file:
        engine = pytrec_eval.RelevanceEvaluator(
            pytrec_eval.parse_qrel(qrels_file), {"ndcg_cut", "P", "map_cut", "recall", "map", "recip_rank"}
        )
        theirs = engine.evaluate(pytrec_eval.parse_run(run_file))
    for name, trec_name in NAMES.items():
        assert set(ours.per_query[name]) == set(qrels)
        for query, value in ours.per_query[name].items():
            assert value == pytest.approx(theirs.get(query, {}).get(trec_name, 0.0), abs=1e-9)


@given(RUNS, QRELS, st.integers(1, 3))
def test_values_do_not_depend_on_how_many_queries_are_measured_at_once(run, qrels, queries):
    names = ["Rprec", "P(rel=2)@5", "Judged@10", "nDCG(judged_only=True)@2"]
    expected = evaluate(rows(run), judgements(qrels), names)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("drkit.evaluate.engines.QUERIES_AT_ONCE", queries)
        assert evaluate(rows(run), judgements(qrels), names) == expected


@given(RUNS, QRELS, st.integers(1, 12))
def test_a_cut_reciprocal_rank_is_the_uncut_one_within_the_cut(run, qrels, cut):
    scores = evaluate(rows(run), judgements(qrels), ["RR", f"RR@{cut}"])
    for query, value in scores.per_query["RR"].items():
        expected = value if value and round(1 / value) <= cut else 0.0
        assert scores.per_query[f"RR@{cut}"][query] == pytest.approx(expected)


def test_every_judged_query_counts_for_every_measure():
    qrels = {"found": {"a": 1}, "missing": {"a": 1}, "no positive": {"a": 0}, "lost": {"b": 2}}
    run = [("found", [("a", 1.0)]), ("no positive", [("a", 1.0)]), ("unjudged", [("a", 1.0)]), ("lost", [])]
    scores = evaluate(run, judgements(qrels))
    assert scores.measures == MEASURES
    assert scores.queries == 4
    assert scores.means() == dict.fromkeys(MEASURES, 0.25)


def test_ties_go_to_the_last_doc_id_for_all_measures():
    run = [("q", [("a", 1.0), ("b", 1.0)])]
    scores = evaluate(run, [Judgement("q", "a", 1)], ["RR", "RR@10", "P@1", "nDCG@10"])
    assert scores.means() == pytest.approx({"RR": 0.5, "RR@10": 0.5, "P@1": 0.0, "nDCG@10": 1 / np.log2(3)})


def test_two_names_of_one_measure_have_one_value():
    run = [("q", [("a", 1.0)])]
    assert evaluate(run, [Judgement("q", "a", 1)], ["RR@10", "MRR@10"]).means() == {"RR@10": 1.0, "MRR@10": 1.0}


@pytest.mark.parametrize("name", ["foo", "RR@x", "nDCG@", "R", "R@-1", "RR@0", "", "__import__('os')"])
def test_an_unknown_measure_is_told_with_examples(name):
    with pytest.raises(DrkitError, match=r"measure .*: RR@10, nDCG@10"):
        check_measures(["RR@10", name])


def test_contradictions_are_refused():
    with pytest.raises(DrkitError, match="no judgements"):
        evaluate([], [])
    with pytest.raises(DrkitError, match="judged twice"):
        evaluate([], [Judgement("q", "d", 1), Judgement("q", "d", 0)])
    with pytest.raises(DrkitError, match="duplicate query 'q'"):
        evaluate([("q", []), ("q", [])], [Judgement("q", "d", 1)])
    with pytest.raises(DrkitError, match=r"'q' .*duplicate document"):
        evaluate([("q", [("d", 1.0), ("d", 2.0)])], [Judgement("q", "d", 1)])


HITS = [("q1", [(f"d{i}", 10.0 - i) for i in range(1, 10)])]
GRADES = {"d5": 1, "d6": 0, "d7": 1, "d8": 0}


@pytest.mark.parametrize(
    ("measure", "more", "value"),
    [
        ("nDCG(judged_only=True)@3", {}, 0.9197),
        ("P(judged_only=True)@2", {}, 0.5),
        ("AP(judged_only=True)@3", {}, 0.8333),
        ("Judged@9", {}, 0.4444),
        ("Judged@9", {"d9": -1}, 0.5556),
        ("nDCG(judged_only=True)@3", {"d9": -1}, 0.9197),
        ("R_cap@5", {}, 0.5),
        ("R_cap@1", {"d1": 1}, 1.0),
        ("R@1", {"d1": 1}, 0.3333),
    ],
)
def test_hits_are_cut_after_unjudged_ones_are_removed_and_recall_may_be_capped(measure, more, value):
    qrels = [Judgement("q1", doc, grade) for doc, grade in {**GRADES, **more}.items()]
    assert evaluate(HITS, qrels, [measure]).mean(measure) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("measure", ["RR@99999999999999999999", "R(rel=99999999999999)@5", "R_cap@0", "R_cap@x"])
def test_numbers_that_no_engine_takes_are_refused_before_anything_is_measured(measure):
    with pytest.raises(DrkitError, match="unknown measure"):
        check_measures([measure])


@settings(max_examples=100)
@given(st.data())
def test_every_supported_measure_is_that_of_ir_measures(data):
    docs = [f"d{i}" for i in range(40)]
    ranked = data.draw(st.permutations(docs))[: data.draw(st.integers(1, len(docs)))]
    grades = data.draw(st.dictionaries(st.sampled_from(docs), st.integers(0, 3), min_size=1))
    names = ["nDCG@5", "nDCG", "P@3", "R@4", "AP", "AP@7", "RR", "RR@10", "Success@2", "Rprec", "Judged@6"]
    names += ["nDCG(judged_only=True)@2", "P(judged_only=True)@2", "P(rel=2)@3"]
    run = {"q": {doc: float(len(ranked) - rank) for rank, doc in enumerate(ranked)}}
    found = evaluate([("q", list(run["q"].items()))], [Judgement("q", *pair) for pair in grades.items()], names)
    expected = ir_measures.calc_aggregate([ir_measures.parse_measure(name) for name in names], {"q": grades}, run)
    assert found.means() == {name: float(expected[ir_measures.parse_measure(name)]) for name in names}
