"""Re-ranking: what is scored, what stays below, and what happens where texts or scores are missing."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.data.corpus import open_collection
from drkit.encoders import CrossEncoder
from drkit.errors import DrkitError
from drkit.search import Reranker, read_run, rerank, reranking, write_run
from tests.rerank.toys import TOPICS, checkpoint, stored


class Table:
    """Scores that stand in a table; anything with `score` will do."""

    def __init__(self, scores):
        self.scores, self.asked = scores, []

    def score(self, pairs):
        self.asked += pairs
        return np.array([self.scores[passage] for _, passage in pairs], dtype=np.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return CrossEncoder.start_from(str(checkpoint(folder / "lm")), max_length=40, seed=4)


@given(
    st.dictionaries(st.sampled_from("abcdefghij éü"), st.floats(-1e6, 1e6, width=32), min_size=1),
    st.lists(st.floats(-1e8, 1e8, width=32), min_size=14, max_size=14),
    st.integers(1, 14),
)
def test_the_rule_written_out(tmp_path_factory, hits, values, depth):
    texts = {doc_id: f"text {doc_id}" for doc_id in "abcdefghij éü"}
    new = dict(zip(texts.values(), values, strict=False))
    ((_, row),) = rerank([("q", hits.items())], Table(new), queries={"q": "?"}, corpus=texts, depth=depth)
    old = sorted(hits, key=lambda d: (hits[d], d.replace(" ", "%20")), reverse=True)
    expected = sorted(old[:depth], key=lambda d: (new[texts[d]], d.replace(" ", "%20")), reverse=True) + old[depth:]
    assert [doc_id for doc_id, _ in row] == expected
    for doc_id, score in row[:depth]:
        assert score == new[texts[doc_id]]
    scores = np.array([score for _, score in row], dtype=np.float32)
    below = scores[min(depth, len(old)) - 1 :]
    assert (np.diff(below) < 0).all(), "strictly: a run file keeps the order"
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_run(path, [("q", row)], "t")
    ((_, back),) = read_run(path)
    assert [doc_id for doc_id, _ in back] == expected


def test_only_the_first_passages_are_read():
    run = [(q, [(f"d{i}", float(-i)) for i in range(50)]) for q in ("q1", "q 2")]
    texts = {f"d{i}": f"t{i}" for i in range(50)}
    table = Table({f"t{i}": i for i in range(50)})
    rows = list(rerank(iter(run), table, queries={"q1": "one", "q 2": "two"}, corpus=texts, depth=3))
    assert sorted(table.asked) == [(q, f"t{i}") for q in ("one", "two") for i in range(3)]
    assert [doc_id for doc_id, _ in rows[1][1]] == ["d2", "d1", "d0", *(f"d{i}" for i in range(3, 50))]


def test_it_streams(monkeypatch):
    monkeypatch.setattr(reranking, "WINDOW", 4)
    taken = []

    def rows():
        for query in range(20):
            taken.append(query)
            yield str(query), [("d1", 1.0), ("d2", 0.5)]

    texts = {"d1": "x", "d2": "y"}
    queries = {str(i): "?" for i in range(20)}
    out = rerank(rows(), Table({"x": 0.0, "y": 1.0}), queries=queries, corpus=texts, depth=2)
    assert next(out)[0] == "0"
    assert len(taken) == 2, "a window of pairs, no more"
    assert [query for query, _ in out] == [str(i) for i in range(1, 20)]


def test_missing_texts_are_counted_and_stay_below():
    run = [("known", [("d1", 5.0), ("gone", 4.0), ("d2", 3.0), ("d3", 2.0)]), ("unknown", [("d1", 1.0), ("d2", 7.0)])]
    missing = Counter()
    table, texts = Table({"a": 0.0, "b": 9.0}), {"d1": "a", "d2": "b", "d3": "c"}
    rows = dict(rerank(run, table, queries={"known": "?"}, corpus=texts, depth=3, missing=missing))
    assert [doc_id for doc_id, _ in rows["known"]] == ["d2", "d1", "gone", "d3"]
    assert rows["unknown"] == [("d2", 7.0), ("d1", 1.0)]
    assert missing == {"queries": 1, "passages": 1}


def test_nothing_found_and_no_rows():
    table = Table({})
    assert list(rerank([], table, queries={}, corpus={}, depth=5)) == []
    assert list(rerank([("q", [])], table, queries={"q": "?"}, corpus={}, depth=5)) == [("q", [])]
    assert list(rerank([("q", [("x", 1.0)])], table, queries={"q": "?"}, corpus={}, depth=5)) == [("q", [("x", 1.0)])]


def test_bad_depth_and_scores():
    with pytest.raises(DrkitError, match=r"depth .*1, got 0"):
        next(rerank([], Table({}), queries={}, corpus={}, depth=0))
    with pytest.raises(DrkitError, match=r"'q': .*'d1' .*nan"):
        list(rerank([("q", [("d1", 1.0)])], Table({"a": np.nan}), queries={"q": "?"}, corpus={"d1": "a"}))


def test_a_stored_corpus_and_titles(tmp_path):
    corpus = open_collection(stored(tmp_path)).corpus
    run = [
        ("q", [(f"d {topic} ü", float(i)) for i, topic in enumerate(TOPICS)] + [("d empty", -1.0), ("no such", -2.0)])
    ]
    table = Table({passage.content: float(len(passage.content)) for passage in corpus})
    ((_, row),) = rerank(run, table, queries={"q": ""}, corpus=corpus, depth=100)
    assert [doc_id for doc_id, _ in row[-2:]] == ["d empty", "no such"]
    assert row[0][0] in ("d string ü", "d module ü", "d thread ü", "d socket ü", "d number ü", "d object ü")


def test_scores_do_not_depend_on_the_batch_or_the_order(model):
    rng = np.random.default_rng(0)
    words = [*TOPICS, "überall", "", "of the"]
    pairs = [
        (" ".join(rng.choice(words, rng.integers(0, 9))), " ".join(rng.choice(words, rng.integers(0, 60))))
        for _ in range(70)
    ]
    scores = Reranker(model).score(pairs)
    assert scores.dtype == np.float32
    order = rng.permutation(len(pairs))
    np.testing.assert_allclose(
        Reranker(model, token_budget=100).score([pairs[i] for i in order]), scores[order], atol=1e-6
    )
    alone = [Reranker(model, token_budget=1).score([pair])[0] for pair in pairs[:5]]
    np.testing.assert_allclose(alone, scores[:5], atol=1e-6)
    assert Reranker(model).score([]).shape == (0,)


def test_bfloat16_is_close_and_asked_for(model):
    pairs = [(topic, f"the {other}") for topic in TOPICS for other in TOPICS]
    exact, rough = Reranker(model).score(pairs), Reranker(model, precision="bfloat16").score(pairs)
    assert rough.dtype == np.float32
    assert 0 < np.abs(exact - rough).max() < 0.05


def test_windows_change_nothing(model, monkeypatch):
    pairs = [(topic, f"the {other}") for topic in TOPICS for other in TOPICS]
    whole = Reranker(model).score(pairs)
    monkeypatch.setattr(reranking, "WINDOW", 17)
    np.testing.assert_allclose(Reranker(model).score(pairs), whole, atol=1e-6)


def test_scoring_leaves_the_mode_and_needs_no_gradient(model):
    model.train()
    Reranker(model).score([("a", "b")])
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    model.eval()


def test_what_sentence_transformers_scores_from_the_saved_folder(model, tmp_path):
    from sentence_transformers import CrossEncoder as Theirs

    folder = model.save(tmp_path / "reranker")
    pairs = [(topic, f"the {other} is returned") for topic in TOPICS for other in [*TOPICS, ""]]
    theirs = Theirs(str(folder), device="cpu").predict(pairs, show_progress_bar=False)
    np.testing.assert_allclose(Reranker.load(folder).score(pairs), theirs, atol=1e-6)
