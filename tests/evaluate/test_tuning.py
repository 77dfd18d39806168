"""Choices by dev queries: the plain one stays within a standard error, and rounding decides nothing."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.types import Judgement, Passage, Query
from drkit.errors import DrkitError
from drkit.evaluate import Scores, tune_weight, tuning
from drkit.evaluate.systems import describe_bm25
from drkit.evaluate.tuning import choose_plainly, tune_bm25


def test_the_order_in_which_values_are_added_chooses_no_weight(monkeypatch):
    """.1 + .2 + .3 is more than .3 + .2 + .1."""
    calls = []

    def measure(*_arguments, **_settings):
        calls.append(None)
        values = [0.1, 0.2, 0.3] if len(calls) <= 10 else [0.3, 0.2, 0.1]  # weights 0 to .45, and from .5
        return Scores({"P@10": dict(zip("abc", values, strict=True))})

    assert 0.1 + 0.2 + 0.3 > 0.3 + 0.2 + 0.1
    monkeypatch.setattr(tuning, "evaluate", measure)
    rows = [(query, [("d", 1.0)]) for query in "abc"]
    assert tune_weight(rows, rows, [Judgement(query, "d", 1) for query in "abc"], "P@10").weight == 0.5


VALUES = st.dictionaries(
    st.sampled_from(["first", "second", "third", "fourth"]),
    st.lists(st.integers(0, 10).map(lambda value: value / 10), min_size=6, max_size=6),
    min_size=1,
)


@given(VALUES)
def test_the_plain_choice_stays_unless_the_best_gains_more_than_one_standard_error(values):
    choice = choose_plainly({name: dict(zip("abcdef", row, strict=True)) for name, row in values.items()})
    plain, best = next(iter(values)), max(values, key=lambda name: round(sum(values[name]), 6))
    assert (choice.plain, choice.best) == (plain, best)
    differences = [one - other for one, other in zip(values[best], values[plain], strict=True)]
    gain, error = statistics.mean(differences), statistics.stdev(differences) / 6**0.5
    assert (choice.gain, choice.error) == (pytest.approx(gain), pytest.approx(error))
    if abs(gain - error) > 1e-9:
        assert choice.chosen == (best if gain > error else plain)


def test_a_single_query_decides_nothing():
    assert choose_plainly({"plain": {"q": 0.0}, "other": {"q": 1.0}}).chosen == "plain"


def test_a_choice_needs_candidates_and_the_same_queries():
    for values in ({}, {"plain": {}}):
        with pytest.raises(DrkitError, match="at least one candidate and one judged query"):
            choose_plainly(values)
    with pytest.raises(DrkitError, match="'other' was evaluated on other queries than 'plain'"):
        choose_plainly({"plain": {"a": 1.0}, "other": {"b": 1.0}})


def test_bm25_keeps_its_first_pair_within_one_standard_error_and_changes_it_beyond():
    """Length normalisation puts the short passage first; half of these queries want the long one."""
    passages = [Passage("long", "fish fish, salt, lemon, bread, butter, peas, beans"), Passage("short", "fish")]
    queries = [Query(str(number), "fish") for number in range(10)]
    pairs = [(1.2, 1.0), (1.2, 0.0)]
    for wanted, expected in (("lssssslllll", 1.0), ("lllllllllls", 0.0)):
        documents = ["long" if letter == "l" else "short" for letter in wanted[:10]]
        judged = [Judgement(query.query_id, doc, 1) for query, doc in zip(queries, documents, strict=True)]
        retriever, facts = tune_bm25(passages, pairs, (queries, judged), "RR@1")
        assert facts["b"] == expected
        first = next(iter(retriever.search(["fish"], 1)[0].pairs()))[0]
        assert first == ("short" if expected else "long")
        assert facts["means"]["k1 1.2, b 0"] == wanted[:10].count("l") / 10
        assert facts["gain"] == pytest.approx(max(0.0, facts["means"]["k1 1.2, b 0"] - facts["means"]["k1 1.2, b 1"]))


def test_bm25_splits_identifiers_of_queries_otherwise_if_dev_queries_show_a_gain():
    """Every query is an identifier that a passage has; some of them want the passage with the words within it."""
    passages = [Passage("whole", "getUser"), Passage("words", "get get user user")]
    queries = [Query(str(number), "getUser") for number in range(10)]
    for wanted in ("wwwwwnnnnn", "wnnnnnnnnn"):
        judged = [
            Judgement(query.query_id, "whole" if letter == "w" else "words", 1)
            for query, letter in zip(queries, wanted, strict=True)
        ]
        retriever, facts = tune_bm25(
            passages, [(1.2, 0.75)], (queries, judged), "R@10", split_queries=("unknown", "always")
        )
        assert facts["split_queries"] == "always"
        assert facts["split"]["means"]["unknown"] == wanted.count("w") / 10
        assert facts["split"]["means"]["always"] == 1.0
        assert len(retriever.search(["getUser"], 5)[0].doc_ids) == 2
    alone, facts = tune_bm25(passages, [(1.2, 0.75)], None, "R@10", split_queries=("never", "always"))
    assert (facts["split_queries"], alone.search(["getUser"], 5)[0].doc_ids) == ("never", ("whole",))


def test_the_line_on_bm25_says_how_identifiers_of_queries_are_split():
    facts = {"k1": 1.2, "b": 0.75, "measure": "RR@10", "queries": 30, "means": {"k1 1.2, b 0.75": 0.5}, "gain": 0.0}
    facts |= {"error": 0.0, "split_queries": "unknown"}
    first = "BM25: k1 1.2, b 0.75, best of 1 on 30 dev queries (RR@10 0.500)"
    means = {"unknown": 0.5, "always": 0.51}
    assert describe_bm25(facts) == first
    assert describe_bm25({**facts, "split": {"means": means, "gain": 0.0, "error": 0.0}}) == first
    split = {"means": means, "gain": 0.01, "error": 0.02}
    assert describe_bm25({**facts, "split": split}) == (
        f"{first}; identifiers in queries: those that no passage has are split "
        f"(all are split: +0.010 RR@10, within one standard error, 0.020)"
    )
    assert describe_bm25({**facts, "split_queries": "always", "split": {**split, "error": 0.005}}) == (
        f"{first}; identifiers in queries: all are split (RR@10 0.510; 0.500 if those that no passage has are split)"
    )
