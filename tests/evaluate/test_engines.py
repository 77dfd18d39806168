"""What engines get and give: scores, grades, subtopics, counts; and what is refused before any of them is asked."""

from __future__ import annotations

import ir_measures
import pytest
import pytrec_eval

from drkit.core.types import Judgement
from drkit.errors import DrkitError
from drkit.evaluate import check_measures, evaluate
from tests.refusals import says


def run_of(*doc_ids, query="q1", first=-1.0):
    """A ranking whose scores are all below 0, as those of distances are."""
    return [(query, [(doc_id, first - i) for i, doc_id in enumerate(doc_ids)])]


def test_a_passage_that_is_no_hit_is_never_above_one_that_is():
    """Rank-biased overlap with the ideal ranking: b, the hit, is ideal before a, although 0 is above its score."""
    judged = [Judgement("q1", "a", 1), Judgement("q1", "b", 1)]
    # Depth 2: the overlap of [b] with [b, a] is 1/1, then 1/2, weighted by 1 and p; the best is 1 + p.
    expected = (1 + 0.5 * 0.5) / (1 + 0.5)
    for first in (-1.0, 0.0, 5.0):
        found = evaluate(run_of("b", first=first), judged, ["Compat(p=0.5)"])
        assert found.mean("Compat(p=0.5)") == pytest.approx(expected)


def test_counts_are_added_up_over_all_judged_queries():
    judged = [Judgement("q1", "a", 2), Judgement("q1", "b", 0), Judgement("lost", "a", 1), Judgement("none", "a", -1)]
    names = ["NumQ", "NumRel", "NumRel(rel=2)", "NumRet", "NumRelRet", "NumRet(rel=2)", "P@2"]
    found = evaluate([*run_of("a", "b", "c"), *run_of("a", query="unjudged")], judged, names)
    assert found.means() == pytest.approx(dict(zip(names, [3, 2, 1, 3, 1, 1, 0.5 / 3], strict=True)))
    assert found.per_query["NumRel"] == {"q1": 1, "lost": 1, "none": 0}
    of_trec_eval = pytrec_eval.RelevanceEvaluator({"q1": {"a": 2, "b": 0}}, {"num_ret", "num_rel", "num_rel_ret"})
    values = of_trec_eval.evaluate({"q1": {"a": 3.0, "b": 2.0, "c": 1.0}})["q1"]
    assert [found.per_query[name]["q1"] for name in ("NumRet", "NumRel", "NumRelRet")] == [
        values[name] for name in ("num_ret", "num_rel", "num_rel_ret")
    ]


def test_a_pooled_passage_that_was_not_assessed_counts_for_inferred_ap():
    """By the formula: of the hit above b, it is known that it is in the pool, and of c that it is not."""
    grades = {"a": -1, "b": 1, "d": 0}
    found = evaluate(run_of("a", "b"), [Judgement("q1", *pair) for pair in grades.items()], ["infAP", "AP"])
    epsilon = 1e-5
    assert found.mean("infAP") == pytest.approx(1 / 2 + 1 / 2 * (1 / 1) * (epsilon / (2 * epsilon)))
    assert found.mean("AP") == 0.5
    unpooled = [Judgement("q1", "b", 1), Judgement("q1", "d", 0)]
    assert evaluate(run_of("a", "b"), unpooled, ["infAP"]).mean("infAP") == pytest.approx(0.5)


@pytest.mark.parametrize("query", ["q1", "1", "topic-7"])
def test_err_and_exponential_ndcg_are_the_formulas_for_any_id(query):
    judged = [Judgement(query, doc, grade) for doc, grade in {"a": 1, "b": 4, "c": 0, "d": -2}.items()]
    found = evaluate(run_of("d", "a", "b", "c", query=query), judged, ["ERR@3", "ERR", "nDCG(dcg='exp-log2')@3"])
    assert found.mean("ERR@3") == pytest.approx(1 / 16 / 2 + (15 / 16) * (15 / 16) / 3)
    assert found.mean("ERR") == found.mean("ERR@3")
    assert found.mean("nDCG(dcg='exp-log2')@3") == pytest.approx(
        (1 / 1.584962500721156 + 15 / 2) / (15 + 1 / 1.584962500721156)
    )


def test_grades_that_err_does_not_know_are_refused_and_exponential_ndcg_takes_any():
    judged = [Judgement("q1", "a", 1_000_000), Judgement("q1", "b", 999_999)]
    with pytest.raises(DrkitError, match=r"'a' has relevance 1000000 .*ERR@5 .* up to 4"):
        evaluate(run_of("a", "b"), judged, ["ERR@5"])
    found = evaluate(run_of("b", "a"), judged, ["nDCG(dcg='exp-log2')@2"]).mean("nDCG(dcg='exp-log2')@2")
    low = 1 / 1.584962500721156
    assert found == pytest.approx((0.5 + low) / (1 + low / 2))


@pytest.fixture
def without(monkeypatch):
    """No engine but those that drkit's own dependencies bring."""
    for engine in (ir_measures.pyndeval, ir_measures.cwl_eval, ir_measures.ranx):
        monkeypatch.setattr(engine, "is_available", lambda: False)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("alpha_nDCG@20", "pyndeval"),
        ("ERR_IA(judged_only=True)@5", "pyndeval"),
        ("StRecall", "pyndeval"),
        ("RBP(rel=1)", "cwl_eval"),
        ("INST(max_rel=3)", "cwl_eval"),
        ("BPM(max_rel=1)@5", "cwl_eval"),
    ],
)
def test_a_missing_engine_is_named_with_its_package(without, name, engine):
    with pytest.raises(DrkitError) as caught:
        check_measures(["RR@10", name])
    assert says(str(caught.value), repr(name), "not installed", engine, f"pip install ir-measures[{engine}]")
    assert "unknown" not in str(caught.value)


def test_a_measure_that_no_engine_computes_is_told_with_what_they_do(without):
    with pytest.raises(DrkitError, match=r"no engine of ir_measures computes 'RBP@10'; .*RBP\(.*rel=REQUIRED"):
        check_measures(["RBP@10"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ndcg@10", "did you mean 'nDCG@10'"),
        ("P", "did you mean 'P@10'"),
        ("P(x=1)@3", "'x'"),
        ("P(rel=0)@3", "rel must be from 1"),
        ("P(rel=-1)@3", "values must be"),
        ("Compat(p=1.5)", "p must be from 0 to 1"),
        ("IPrec@0.125", "two decimals"),
        ("INST(max_rel=1,min_rel=1)", "above min_rel"),
        ("nDCG(gains={1:2,2:0.5})@10", "whole numbers"),
    ],
)
def test_a_wrong_parameter_is_named(name, reason):
    with pytest.raises(DrkitError, match="unknown measure") as caught:
        check_measures([name])
    assert reason in str(caught.value)


SUBTOPICS = [
    Judgement("q1", "a", 1, "1"),
    Judgement("q1", "a", 0, "2"),
    Judgement("q1", "b", 1, "2"),
    Judgement("q1", "c", 1, "1"),
    Judgement("lost", "a", 1, "1"),
]


@pytest.fixture
def diversity(monkeypatch):
    monkeypatch.setattr(ir_measures.pyndeval, "is_available", lambda: True)


def test_diversity_measures_need_subtopics(diversity):
    plain = [Judgement(one.query_id, one.doc_id, one.relevance) for one in SUBTOPICS if one.subtopic != "2"]
    with pytest.raises(DrkitError, match=r"alpha_nDCG@20 needs judgements of subtopics .* none of the 2 queries"):
        evaluate(run_of("a", "b"), plain, ["P@1", "alpha_nDCG@20"])
    with pytest.raises(DrkitError, match="at most 20, got 'alpha_nDCG@21'"):
        check_measures(["alpha_nDCG@21"])
    with pytest.raises(DrkitError, match=r"at most 20, got 'ERR_IA'; use ERR_IA@20"):
        check_measures(["ERR_IA"])


def test_a_run_has_no_diversity_measures(diversity):
    with pytest.raises(DrkitError, match=r"alpha_nDCG@20 needs judgements of subtopics.* --qrels FILE"):
        check_measures(["alpha_nDCG@20"], has_subtopics=False)
    check_measures(["alpha_nDCG@20"])


def test_a_document_with_several_grades_has_no_ad_hoc_measure():
    with pytest.raises(DrkitError, match=r"'a' has relevance 1 for the subtopic '1' .*RR@10 needs one relevance"):
        evaluate(run_of("a", "b"), SUBTOPICS, ["RR@10"])
    alike = [one for one in SUBTOPICS if one.relevance]
    assert evaluate(run_of("x", "b"), alike, ["RR@10"]).means() == {"RR@10": 0.25}
    with pytest.raises(DrkitError, match="judged twice"):
        evaluate([], [*alike, Judgement("q1", "a", 0, "1")], ["RR@10"])


def test_diversity_measures_read_subtopics_however_many_are_asked_for():
    pyndeval = pytest.importorskip("pyndeval", reason="pyndeval is not installed")
    names = ["alpha_nDCG@20", "alpha_nDCG(alpha=0.2)@20", "ERR_IA@20", "StRecall@2"]
    found = evaluate(run_of("a", "c", "b"), SUBTOPICS, names)
    qrels = [(one.query_id, one.subtopic, one.doc_id, one.relevance) for one in SUBTOPICS]
    for name, theirs, alpha in zip(
        names, ("alpha-nDCG@20", "alpha-nDCG@20", "ERR-IA@20", "strec@2"), (0.5, 0.2, 0.5, 0.5), strict=True
    ):
        ranked = [("q1", doc_id, 3.0 - i) for i, doc_id in enumerate("acb")]
        value = pyndeval.ndeval(qrels, ranked, [theirs], alpha=alpha)["q1"][theirs]
        assert found.per_query[name] == pytest.approx({"q1": value, "lost": 0.0})
        assert 0 < value < 1 or name == "StRecall@2"
