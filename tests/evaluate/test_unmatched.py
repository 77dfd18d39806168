"""Ids of runs and judgements that do not match, and how they would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.commands.evaluation import JudgedQueries, System, evaluate_files
from drkit.core.types import Judgement
from drkit.errors import DrkitError
from drkit.evaluate.unmatched import likely_match
from drkit.search import write_run
from tests.refusals import says

NUMBERS = st.sets(st.integers(1, 5000), min_size=2, max_size=30)
WAYS = {
    "without regard to case": ("Doc-{}", "doc-{}"),
    "without leading zeros": ("{:08}", "{}"),
    "without their prefix": ("msmarco_v2.1_doc_{}", "{}"),
    "without prefix, case and leading zeros": ("D{:07}x", "{}X"),
}


@pytest.mark.parametrize("how", WAYS)
@given(NUMBERS)
def test_ids_that_differ_in_a_known_way_are_recognised(how, numbers):
    ours, theirs = ([form.format(number) for number in numbers] for form in WAYS[how])
    found = likely_match(ours, theirs)
    assert found is not None
    assert found.count == len(numbers)
    assert theirs[ours.index(found.ours)] == found.theirs


@given(st.sets(st.text(min_size=1), max_size=9), st.sets(st.text(min_size=1), max_size=9))
def test_a_way_is_named_only_if_it_matches_twice_as_many(ours, theirs):
    found = likely_match(ours, theirs)
    assert found is None or found.count >= max(1, 2 * len(ours & theirs))
    assert likely_match(ours, ours) is None


def notes_of(tmp_path, run, judgements):
    write_run(tmp_path / "r.trec", run, "t")
    notes: list[str] = []
    evaluate_files([System("r", (tmp_path / "r.trec",))], JudgedQueries(tuple(judgements)), note=notes.append)
    return notes


def test_a_run_without_a_judged_hit_is_noted(tmp_path):
    run = [("q1", [("D1", 2.0), ("D2", 1.0)]), ("q2", [("D2", 1.0)])]
    (note,) = notes_of(tmp_path, run, [Judgement("q1", "d1", 1), Judgement("q2", "d2", 1)])
    assert says(note, "no judged query has a judged hit", "'D1'", "'d1'", "2 would match without regard to case")
    (note,) = notes_of(tmp_path, run, [Judgement("q1", "x", 1)])
    assert says(note, "no judged query", "'D1'", "'x'", "collection searched")
    assert notes_of(tmp_path, run, [Judgement("q1", "D2", 0), Judgement("q2", "x", 1)]) == []


def test_a_run_with_few_judged_hits_is_noted_if_more_would_match(tmp_path):
    run = [(f"q{i}", [(f"D{i}", 1.0)]) for i in range(30)]
    judged = [Judgement(f"q{i}", f"D{i}" if i < 2 else f"d{i}", 1) for i in range(30)]
    (note,) = notes_of(tmp_path, run, judged)
    assert says(note, "only 2 of the 30", "28 would match") or says(note, "only 2 of the 30", "30 would match")
    unmatched = [Judgement(f"q{i}", f"D{i}" if i < 2 else f"other{i}", 1) for i in range(30)]
    assert notes_of(tmp_path, run, unmatched) == []


def test_queries_that_would_match_are_named(tmp_path):
    run = [("001", [("d", 1.0)]), ("2", [("d", 1.0)])]
    (note,) = notes_of(tmp_path, run, [Judgement("1", "d", 1), Judgement("2", "d", 1)])
    assert says(note, "no hits for 1 of the 2", "without leading zeros", "'001'", "'1'")
    with pytest.raises(DrkitError, match=r"none of the 2 queries .* without regard to case, such as 'Q1' and 'q1'"):
        notes_of(tmp_path, [("Q1", [("d", 1.0)]), ("Q2", [("d", 1.0)])], [Judgement("q1", "d", 1)])
