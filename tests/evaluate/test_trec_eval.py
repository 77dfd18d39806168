"""Every measure against trec_eval itself (through pytrec_eval), on the very files that drkit writes and reads again."""

from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.core.types import Judgement
from drkit.data.qrels import encode_id, read_qrels, write_qrels
from drkit.evaluate import evaluate
from drkit.search.run_files import read_run, write_run

# drkit's name -> trec_eval's
NAMES = {
    "nDCG@10": "ndcg_cut_10",
    "nDCG@3": "ndcg_cut_3",
    "nDCG": "ndcg",
    "R@5": "recall_5",
    "R@100": "recall_100",
    "R@1000": "recall_1000",
    "P@1": "P_1",
    "P@5": "P_5",
    "AP": "map",
    "AP@10": "map_cut_10",
    "RR": "recip_rank",
    "Success@1": "success_1",
    "Success@5": "success_5",
    "Rprec": "Rprec",
}
ASKED = {
    "ndcg",
    "ndcg_cut.3,10",
    "recall.5,100,1000",
    "P.1,5",
    "map",
    "map_cut.10",
    "recip_rank",
    "success.1,5",
    "Rprec",
}
DOCS = st.sampled_from(
    [*(f"d{i}" for i in range(16)), "a b", "a!b", "a%b", "ä", "zß", "日本", "\U0001d6fc", "é", "\u2028x"]
)
QUERIES = st.sampled_from(["q1", "q2", "q 3", "frage-ü", "100%"])
# Few values, so that ties are common; the last two are equal as float32 alone.
SCORES = st.sampled_from([0.5, 1.0, -3.0, 0.1, 1e-8, 2.0, 2.0 + 1e-9])
GRADES = st.integers(-1, 3)
RUNS = st.dictionaries(
    QUERIES | st.just("unjudged"), st.dictionaries(DOCS, SCORES, min_size=1, max_size=24), min_size=1
)
# (trec_eval reads past its arrays where all of a query's judgements are negative.)
GRADED = st.dictionaries(DOCS, GRADES, min_size=1).filter(lambda grades: max(grades.values()) >= 0)
QRELS = st.dictionaries(QUERIES | st.just("missing"), GRADED, min_size=1)


def rows(run):
    return [(query, list(hits.items())) for query, hits in run.items()]


def judgements(qrels):
    return [Judgement(query, doc, grade) for query, grades in qrels.items() for doc, grade in grades.items()]


def trec_eval(run_file, qrels_file):
    """trec_eval's values by query and measure, for the queries of both files."""
    with run_file.open(encoding="utf-8") as run, qrels_file.open(encoding="utf-8") as qrels:
        engine = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(qrels), ASKED)
        return engine.evaluate(pytrec_eval.parse_run(run))


def check(run, qrels, folder):
    write_run(folder / "run", rows(run), "t")
    write_qrels(folder / "qrels", judgements(qrels))
    theirs = trec_eval(folder / "run", folder / "qrels")
    from_files = evaluate(read_run(folder / "run"), read_qrels(folder / "qrels"), [*NAMES, "RR@10"])
    from_memory = evaluate(rows(run), judgements(qrels), [*NAMES, "RR@10"])
    assert from_files == from_memory
    for query in qrels:
        found = theirs.get(encode_id(query), {})
        for name, trec_name in NAMES.items():
            assert from_files.per_query[name][query] == pytest.approx(found.get(trec_name, 0.0), abs=1e-9), name
        whole = found.get("recip_rank", 0.0)
        assert from_files.per_query["RR@10"][query] == pytest.approx(whole if whole > 0.095 else 0.0)
    for name, trec_name in NAMES.items():  # `trec_eval -c`: over all judged queries
        total = sum(found[trec_name] for found in theirs.values())
        assert from_files.mean(name) == pytest.approx(total / len(qrels), abs=1e-9)


@settings(max_examples=max(200, settings().max_examples))
@given(RUNS, QRELS)
def test_all_measures_are_those_of_trec_eval_on_the_same_files(tmp_path_factory, run, qrels):
    check(run, qrels, tmp_path_factory.mktemp("trec"))


@pytest.mark.parametrize("seed", range(3))
def test_a_long_run_of_real_scores(tmp_path, seed):
    rng = np.random.default_rng(seed)
    run = {
        f"q{q}": {f"d{d}": round(float(rng.normal()), 2) for d in rng.choice(3000, 1200, replace=False)}
        for q in range(12)
    }
    qrels = {f"q{q}": {f"d{d}": int(rng.integers(-1, 4)) for d in rng.choice(3000, 40)} for q in range(3, 15)}
    check(run, qrels, tmp_path)


def test_ties_follow_the_ids_as_the_file_has_them(tmp_path):
    """In a file `a b` is `a%20b`, which sorts behind `a!b`; in memory it sorts before."""
    run = {"q": {"a b": 1.0, "a!b": 1.0}}
    check(run, {"q": {"a b": 1}}, tmp_path)
    assert evaluate(rows(run), [Judgement("q", "a b", 1)], ["RR@10"]).mean("RR@10") == 1.0


def test_a_querys_own_passage_is_no_hit_where_it_is_left_out(tmp_path):
    run = {"q1": {"q1": 9.0, "a": 2.0, "b": 1.0}, "q2": {"a": 2.0, "b": 1.0}, "q3": {"q3": 1.0}}
    qrels = {"q1": {"a": 1}, "q2": {"b": 1}, "q3": {"a": 1}}
    rankings = [(query, ((doc, score) for doc, score in hits.items())) for query, hits in run.items()]
    ours = evaluate(rankings, judgements(qrels), list(NAMES), exclude_self=True)
    without = {query: {doc: s for doc, s in hits.items() if doc != query} for query, hits in run.items()}
    assert ours == evaluate(rows(without), judgements(qrels), list(NAMES))
    assert ours.per_query["RR"] == {"q1": 1.0, "q2": 0.5, "q3": 0.0}
    assert evaluate(rows(run), judgements(qrels), ["RR"]).per_query["RR"]["q1"] == 0.5


@settings(deadline=None)
@given(RUNS, QRELS)
def test_negative_judgements_count_as_none(run, qrels):
    without = {q: {d: max(g, 0) for d, g in grades.items()} for q, grades in qrels.items()}
    names = [name for name in NAMES if name != "Rprec"]
    assert evaluate(rows(run), judgements(qrels), names) == evaluate(rows(run), judgements(without), names)


def test_a_query_with_negative_judgements_alone_counts_as_nought():
    """On these very files trec_eval does not come back."""
    run = {"q 3": {"a b": 0.5, "d8": 0.5, "\u65e5": 2.0, "d11": 2.000000001, "d2": -3.0}, "q1": {"d3": 1.0}}
    qrels = [Judgement("q 3", "x", -1), Judgement("q1", "d3", 1), Judgement("q1", "d4", -2)]
    assert evaluate(rows(run), qrels, list(NAMES)).per_query["nDCG"] == {"q 3": 0.0, "q1": 1.0}
    assert evaluate(rows(run), qrels[:1], list(NAMES)).means() == dict.fromkeys(NAMES, 0.0)
