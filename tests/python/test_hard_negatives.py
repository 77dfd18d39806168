"""HardNegatives: pairs in, a Dataset out; never an answer, never the question itself."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drkit.errors import DrkitError, UnknownNameError
from drkit.miners.chain import keep_candidates
from drkit.search import TextEncoder
from drkit_sentence_transformers import HardNegatives


def answers(pairs):
    known = {}
    for anchor, positive in pairs:
        known.setdefault(anchor, set()).add(positive)
    return known


@pytest.fixture(params=["SentenceTransformer", "folder", "bm25"])
def source(request, model, folder):
    if request.param == "SentenceTransformer":
        return model
    return folder if request.param == "folder" else "bm25"


def test_any_source_gives_tuples_without_an_answer(source, pairs):
    hard = HardNegatives(source)
    corpus = {f"d {index}": positive for index, (_, positive) in enumerate(pairs)}
    data = hard.tuples(Dataset.from_list([{"anchor": a, "positive": p} for a, p in pairs]), 3, corpus=corpus)
    assert data.column_names == ["anchor", "positive", "negative_1", "negative_2", "negative_3"]
    known = answers(pairs)
    assert hard.counts["pairs"] == sum(map(len, known.values())) == len(pairs)
    # bm25 finds only what shares a word
    assert len(data) == hard.counts["rows"] == (23 if source == "bm25" else len(pairs))
    for row in data:
        negatives = [row[f"negative_{n}"] for n in (1, 2, 3)]
        assert row["positive"] in known[row["anchor"]]
        assert not known[row["anchor"]] & set(negatives)
        assert len(set(negatives)) == 3
        assert set(negatives) <= set(corpus.values())
    assert hard.counts["dropped"]["judged-positive"] > 0


def test_a_dense_source_is_the_exact_ranking(model, folder, pairs):
    data = HardNegatives(model).tuples(pairs, 4)
    encoder = TextEncoder.load(folder)
    texts = list(dict.fromkeys(positive for _, positive in pairs))
    known = answers(pairs)
    for row in data:
        scores = encoder.encode_passages(texts) @ encoder.encode_queries([row["anchor"]])[0]
        wanted = [texts[i] for i in np.argsort(-scores, kind="stable") if texts[i] not in known[row["anchor"]]]
        found = [row[f"negative_{n}"] for n in (1, 2, 3, 4)]
        by_text = dict(zip(texts, scores, strict=True))
        assert [by_text[t] for t in found] == pytest.approx([by_text[t] for t in wanted[:4]], abs=1e-5)


def test_triplets_and_filters_and_counts(model, pairs):
    hard = HardNegatives(model, ["margin", "ranks:1-9"], settings=["margin.share=0.9", "dense.depth=20"])
    data = hard.triplets(pairs, 2)
    assert data.column_names == ["anchor", "positive", "negative"]
    dropped = hard.counts["dropped"]
    assert dropped["margin"] > 0
    assert "ranks" in dropped or hard.counts["negatives"] <= 9 * hard.counts["queries"]
    every = HardNegatives(model, settings=["dense.depth=20"]).triplets(pairs, 20)
    assert len(data) < len(every)


def test_filters_may_be_objects_among_names(pairs):
    class NoNumbers:
        def keep(self, mined, corpus):
            for _, found in mined:
                texts = [passage.text for passage in corpus.get_many(found.doc_ids)]
                yield keep_candidates(found, ["number" not in text for text in texts], "number")

    hard = HardNegatives("random", ["ranks:1-15", NoNumbers(), "same-text"], seed=3)
    data = hard.triplets(pairs, 4)
    assert hard.counts["dropped"]["number"] > 0
    assert not any("number" in negative for negative in data["negative"])
    again = HardNegatives("random", ["ranks:1-15", NoNumbers(), "same-text"], seed=3).triplets(pairs, 4)
    assert data["negative"][:] == again["negative"][:]


def test_the_question_itself_is_no_negative():
    # duplicate questions: every anchor is a passage too
    pairs = [("how to sort", "sort a list"), ("sort a list", "how to sort"), ("sort files", "files sorted by name")]
    hard = HardNegatives("bm25")
    data = hard.triplets(pairs, 5)
    assert all(row["anchor"] != row["negative"] for row in data)
    assert hard.counts["dropped"]["query-itself"] == 2


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("abcé "), st.sampled_from(["x", "y", "z", "", "北 a", "w w"])), min_size=1))
def test_whatever_the_pairs_no_answer_is_a_negative(pairs):
    known = answers(pairs)
    hard = HardNegatives("random")
    try:
        data = hard.triplets(pairs, 9)
    except DrkitError:
        texts = {positive for _, positive in pairs}
        assert all(texts <= own | {anchor} for anchor, own in known.items())
        return
    texts = {positive for _, positive in pairs}
    wanted = {(a, p, n) for a, own in known.items() for p in own for n in texts - own - {a}}
    rows = [tuple(row.values()) for row in data]
    assert set(rows) == wanted
    assert len(rows) == len(wanted)


class Overlap:
    """Shared letters."""

    def score(self, pairs):
        return np.array([len(set(a) & set(b)) for a, b in pairs], dtype=np.float32)


def test_a_teachers_scores_are_labels(pairs, judge, monkeypatch):
    from sentence_transformers import CrossEncoder

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    data = HardNegatives("bm25", teacher=Overlap()).scored(pairs, 2)
    assert data.column_names == ["anchor", "positive", "negative_1", "negative_2", "label"]
    for row in data:
        texts = [row["positive"], row["negative_1"], row["negative_2"]]
        assert row["label"] == Overlap().score([(row["anchor"], text) for text in texts]).tolist()
    theirs, ours = (
        HardNegatives("bm25", teacher=teacher).scored(pairs, 2)["label"][:]
        for teacher in (CrossEncoder(str(judge), device="cpu"), judge)
    )
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    filtered = HardNegatives("bm25", ["cross-encoder-filter"], teacher=Overlap())
    for row in filtered.scored(pairs, 1):
        best = max(Overlap().score([(row["anchor"], text) for text in answers(pairs)[row["anchor"]]]))
        assert row["label"][1] <= best
    assert filtered.counts["dropped"]["cross-encoder"] > 0


@pytest.mark.parametrize(
    ("arguments", "data", "said"),
    [
        (("dense",), [("a", "b")], "'dense' .*bm25, random"),
        (("run-file:x.trec",), [("a", "b")], r"'run-file:x\.trec' "),
        (("nowhere/model",), [("a", "b")], "'nowhere/model' "),
        ((object(),), [("a", "b")], "object .*encode_passages"),
        (("bm25", ["random"]), [("a", "b")], "'random' .*'bm25'"),
        (("bm25",), [], "data .*empty"),
        (("bm25",), ["ab"], "row 1 .*'ab'"),
        (("bm25",), [("a", "b"), ("a", None)], "row 2 .*pair"),
        (("bm25",), [("one two", "three four")], "1 pair has 5 negatives"),
    ],
)
def test_invalid_sources_filters_and_data_are_reported(arguments, data, said):
    with pytest.raises(DrkitError, match=said):
        HardNegatives(*arguments).tuples(data)


def test_other_mistakes_are_reported(pairs):
    with pytest.raises(DrkitError, match=r"scored\(\) .*teacher="):
        HardNegatives("bm25").scored(pairs)
    with pytest.raises(DrkitError, match="no folder '/nowhere'"):
        HardNegatives("bm25", teacher="/nowhere")
    with pytest.raises(DrkitError, match=r"passage 2 .*'title': 'b'"):
        HardNegatives("bm25").tuples(pairs, corpus=["a", {"title": "b", "x": 1}])
    with pytest.raises(UnknownNameError, match="margin"):
        HardNegatives("bm25", ["margins"]).tuples(pairs)
    with pytest.raises(DrkitError, match=r"negatives .*1, got 0"):
        HardNegatives("bm25").tuples(pairs, 0)

    class Mad:
        def score(self, pairs):
            return np.full(len(pairs), np.nan)

    with pytest.raises(DrkitError, match=r"'remove a' .*'remove a remove' .*finite"):
        HardNegatives("bm25", teacher=Mad()).scored(pairs, 1)


def test_each_process_of_several_mines_for_itself(model, pairs, monkeypatch):
    alone = HardNegatives(model).tuples(pairs, 2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert HardNegatives(model).tuples(pairs, 2).to_list() == alone.to_list()


def test_rows_of_any_names_are_read(pairs):
    rows = [{"query": anchor, "answer": positive} for anchor, positive in pairs]
    corpus = Dataset.from_list([{"_id": f"d {i}", "title": "", "text": p} for i, (_, p) in enumerate(pairs)])
    wanted = HardNegatives("bm25").tuples(pairs, 2).to_list()
    for data in (rows, Dataset.from_list(rows), Dataset.from_list(rows).to_iterable_dataset(), iter(pairs)):
        assert HardNegatives("bm25").tuples(data, 2, corpus=corpus).to_list() == wanted
