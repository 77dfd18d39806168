"""Rankings judged by the answers that passages contain: DPR's top-k accuracy."""

from __future__ import annotations

import json

import pytest

from drkit.commands import evaluate_files, find_systems, judge_by_answers
from drkit.errors import DrkitError
from drkit.search import write_run
from tests.runs.conftest import drkit, write_lines

PASSAGES = {"d0": "It was Ada Lovelace.", "d1": "It was Ada King.", "d2": "No. 50", "d3": "no. 5!"}
ANSWERS = {"q0": ["ada lovelace"], "q1": ["5", "six"], "q2": ["nobody"]}
RANKED = {"q0": ["d1", "d0"], "q1": ["d2", "d1", "d3"], "q2": ["d0"]}


@pytest.fixture
def files(tmp_path):
    write_lines(tmp_path / "texts.jsonl", [{"id": name, "text": text} for name, text in PASSAGES.items()])
    write_lines(tmp_path / "answers.jsonl", [{"query_id": name, "answers": texts} for name, texts in ANSWERS.items()])
    rows = ((query, [(doc_id, -float(rank)) for rank, doc_id in enumerate(hits)]) for query, hits in RANKED.items())
    write_run(tmp_path / "found.trec", rows, "x")
    return tmp_path


def test_a_query_succeeds_where_one_of_its_first_passages_has_an_answer(files):
    systems = find_systems([str(files / "found.trec")])
    collection = f"jsonl:{files / 'texts.jsonl'}"
    judged = judge_by_answers(systems, files / "answers.jsonl", collection=collection)
    relevant = {(one.query_id, one.doc_id) for one in judged.judgements if one.relevance}
    assert relevant == {("q0", "d0"), ("q1", "d3")}
    ((_, scores),) = evaluate_files(systems, judged, ["Success@1", "Success@2", "Success@3"])
    assert scores.means() == pytest.approx({"Success@1": 0, "Success@2": 1 / 3, "Success@3": 2 / 3})
    options = ("--collection", collection, "--answers", files / "answers.jsonl", "-m", "Success@2", "--json")
    printed = json.loads(drkit("evaluate", files / "found.trec", *options).stdout)
    assert printed["rows"][0]["values"] == pytest.approx({"Success@2": 1 / 3})


def test_what_does_not_fit_is_refused(files):
    systems, answers = find_systems([str(files / "found.trec")]), files / "answers.jsonl"
    with pytest.raises(DrkitError, match=r"answers .*--collection NAME .*found\.trec"):
        judge_by_answers(systems, answers)
    write_lines(files / "texts.jsonl", [{"id": "d0", "text": "It was Ada Lovelace."}])
    with pytest.raises(DrkitError, match=r"texts\.jsonl .*'d1';"):
        judge_by_answers(systems, answers, collection=f"jsonl:{files / 'texts.jsonl'}")
    write_lines(answers, [{"query_id": "q0", "answers": ["a"]}])
    with pytest.raises(DrkitError, match=r"answers\.jsonl .*'q1';"):
        judge_by_answers(systems, answers, collection=f"jsonl:{files / 'texts.jsonl'}")
    write_lines(answers, [{"query_id": name, "answers": []} for name in ANSWERS])
    with pytest.raises(DrkitError, match=r"answers\.jsonl.* 3 queries are empty"):
        judge_by_answers(systems, answers, collection=f"jsonl:{files / 'texts.jsonl'}")
