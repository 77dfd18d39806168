"""Fusion: equal to dictionaries and loops; trec_eval's order; missing hits; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.core.types import Judgement
from drkit.data.qrels import encode_id
from drkit.errors import DrkitError
from drkit.evaluate import evaluate
from drkit.evaluate.tuning import HYBRID_WEIGHTS, tune_weight
from drkit.search.fusion import align, convex, min_max, reciprocal_ranks
from drkit.search.run_files import read_run, write_run

DOCS = st.sampled_from([*(f"d{i}" for i in range(12)), "a b", "a!b", "a%b", "ä", "日本", "\u2028x"])
QUERIES = st.sampled_from(["q1", "q2", "q 3", "frage-ü"])
# Few values, so that ties are common; the last two are equal as float32 alone.
SCORES = st.sampled_from([0.5, 1.0, -3.0, 7.25, 1e-8, 2.0, 2.0 + 1e-9]) | st.floats(-1e6, 1e6, width=32)
RUNS = st.dictionaries(QUERIES, st.dictionaries(DOCS, SCORES, max_size=14), max_size=4)
WEIGHT = st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.85, 1.0])


def rows(run):
    return [(query, list(hits.items())) for query, hits in run.items()]


def in_trec_order(scores):
    scores = {doc: float(np.float32(score)) for doc, score in scores.items()}
    return sorted(scores.items(), key=lambda hit: (hit[1], encode_id(hit[0])), reverse=True)


def scaled(hits):
    """The scaled scores of a ranking, from the definition; a missing hit has 0."""
    if not hits:
        return {}
    scores = {doc: float(np.float32(score)) for doc, score in hits.items()}
    low, high = min(scores.values()), max(scores.values())
    return {doc: (s - low) / (high - low) if high > low else 1.0 for doc, s in scores.items()}


def naive_convex(first, second, weight):
    found = {}
    for query in [*first, *(q for q in second if q not in first)]:
        one, two = scaled(first.get(query, {})), scaled(second.get(query, {}))
        found[query] = {doc: (1 - weight) * one.get(doc, 0.0) + weight * two.get(doc, 0.0) for doc in {**one, **two}}
    return found


def naive_reciprocal_ranks(first, second, k):
    found = {}
    for query in [*first, *(q for q in second if q not in first)]:
        sums = found[query] = {}
        for run in (first, second):
            for rank, (doc, _) in enumerate(in_trec_order(run.get(query, {})), start=1):
                sums[doc] = sums.get(doc, 0.0) + 1 / (k + rank)
    return found


@settings(max_examples=max(150, settings().max_examples))
@given(RUNS, RUNS, WEIGHT)
def test_min_max_is_the_definition_in_trec_evals_order(first, second, weight):
    found = list(convex(align(rows(first), rows(second)), weight))
    expected = naive_convex(first, second, weight)
    assert found == [(query, in_trec_order(scores)) for query, scores in expected.items()]


@settings(max_examples=max(150, settings().max_examples))
@given(RUNS, RUNS, st.integers(0, 70))
def test_reciprocal_ranks_are_the_definition_in_trec_evals_order(first, second, k):
    found = list(reciprocal_ranks(rows(first), rows(second), k))
    expected = naive_reciprocal_ranks(first, second, k)
    assert found == [(query, in_trec_order(scores)) for query, scores in expected.items()]


@given(RUNS, RUNS, WEIGHT, st.integers(1, 20))
def test_depth_is_a_prefix_and_a_file_keeps_the_order(tmp_path_factory, first, second, weight, depth):
    whole = list(convex(align(rows(first), rows(second)), weight))
    assert list(convex(align(rows(first), rows(second)), weight, depth)) == [(q, hits[:depth]) for q, hits in whole]
    path = tmp_path_factory.mktemp("fused") / "run.trec"
    write_run(path, whole, "t")
    assert list(read_run(path)) == [(query, hits) for query, hits in whole if hits]


def test_a_single_hit_counts_and_a_missing_ranking_leaves_the_other():
    single, other = [("q", [("a", 3.0)])], [("q", [("b", 2.0), ("c", 1.0)]), ("p", [("x", 1.0)])]
    assert list(convex(align(single, other), 0.25)) == [
        ("q", [("a", 0.75), ("b", 0.25), ("c", 0.0)]),
        ("p", [("x", 0.25)]),
    ]


def test_what_cannot_be_fused_is_refused():
    run = [("q", [("a", 1.0)])]
    for first, second, message in (
        (run * 2, run, "duplicate query 'q'"),
        (run, run * 2, "duplicate query 'q'"),
        ([], run * 2, "duplicate query 'q'"),
        (run, [("q", [("a", 1.0), ("a", 2.0)])], "'q' .*duplicate"),
    ):
        with pytest.raises(DrkitError, match=message):
            list(align(first, second))
    with pytest.raises(DrkitError, match=r"between 0 and 1, got 1\.5"):
        convex([], 1.5)
    with pytest.raises(DrkitError, match="at least 0, got -1"):
        reciprocal_ranks(run, run, -1)


QRELS = st.dictionaries(QUERIES, st.dictionaries(DOCS, st.integers(0, 2), min_size=1), min_size=1)


@given(RUNS, RUNS, QRELS, st.sampled_from(["RR@3", "nDCG@10", "AP"]))
def test_the_best_weight_of_the_grid_replaces_one_half_only_beyond_one_standard_error(first, second, qrels, measure):
    judgements = [Judgement(query, doc, grade) for query, grades in qrels.items() for doc, grade in grades.items()]
    if not qrels.keys() & (first.keys() | second.keys()):
        with pytest.raises(DrkitError, match=r"neither .*judged query"):
            tune_weight(rows(first), rows(second), judgements, measure)
        return
    tuned = tune_weight(rows(first), rows(second), judgements, measure)
    means = {}
    for weight in HYBRID_WEIGHTS:
        run = naive_convex(first, second, weight)
        means[weight] = evaluate(rows(run), judgements, [measure]).mean(measure)
    assert tuned.means == pytest.approx(means)
    assert tuned.queries == len(qrels)
    equally_good = [w for w in HYBRID_WEIGHTS if tuned.means[w] == max(tuned.means.values())]
    assert tuned.best in equally_good
    assert all(abs(tuned.best - 0.5) <= abs(w - 0.5) for w in equally_good)
    assert tuned.weight == (tuned.best if len(qrels) > 1 and tuned.gain > tuned.error + 1e-9 else 0.5)


def test_scaling_does_not_change_its_input():
    scores = np.array([3.0, 2.0, 2.0])
    min_max(scores)
    assert scores.tolist() == [3.0, 2.0, 2.0]
