"""Measures equal trec_eval's on the same files, over all judged queries."""

from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.core.types import Judgement
from drkit.data.qrels import read_qrels, write_qrels
from drkit.errors import DrkitError
from drkit.evaluate import MEASURES, check_measures, evaluate
from drkit.search.rankings import read_run, write_run

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


@settings(deadline=None, max_examples=80)
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


@settings(deadline=None, max_examples=60)
@given(RUNS, QRELS, st.integers(1, 3))
def test_values_do_not_depend_on_how_many_queries_are_measured_at_once(run, qrels, queries):
    names = [*NAMES, "RR@10"]
    expected = evaluate(rows(run), judgements(qrels), names)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("drkit.evaluate.measures.QUERIES_AT_ONCE", queries)
        assert evaluate(rows(run), judgements(qrels), names) == expected


@settings(deadline=None, max_examples=80)
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
    with pytest.raises(DrkitError, match=r"examples of valid names: RR@10, nDCG@10"):
        check_measures(["RR@10", name])


def test_contradictions_are_refused():
    with pytest.raises(DrkitError, match="no judgements"):
        evaluate([], [])
    with pytest.raises(DrkitError, match="judged twice"):
        evaluate([], [Judgement("q", "d", 1), Judgement("q", "d", 0)])
    with pytest.raises(DrkitError, match="duplicate query 'q' in a run"):
        evaluate([("q", []), ("q", [])], [Judgement("q", "d", 1)])
    with pytest.raises(DrkitError, match="duplicate document among its hits"):
        evaluate([("q", [("d", 1.0), ("d", 2.0)])], [Judgement("q", "d", 1)])
