"""Miners never give a judged positive, never one passage twice, and the same for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drkit.builtin import drkit_components
from drkit.core.registry import Registry
from drkit.core.types import BuildContext, Mined, MiningRequest, Passage
from drkit.errors import DrkitError
from drkit.miners import (
    Bm25Config,
    Bm25Miner,
    DenseConfig,
    DenseMiner,
    GivenConfig,
    GivenMiner,
    HybridConfig,
    HybridMiner,
    MixedConfig,
    MixedMiner,
    RandomConfig,
    RandomMiner,
    RunFileConfig,
    RunFileMiner,
)
from drkit.miners.chain import source_names
from drkit.search import Bm25Retriever, HybridRetriever
from drkit.search.rankings import Hits
from drkit.search.run_files import write_run
from drkit.testing import check_miner
from drkit.testing.toys import ToyCorpus, toy_requests
from tests.refusals import refused

WORDS = ["alpha", "beta", "gamma", "delta"]


class ListCorpus:
    def __init__(self, passages):
        self.passages = {p.doc_id: p for p in passages}

    def __len__(self):
        return len(self.passages)

    def __iter__(self):
        return iter(self.passages.values())

    def get_many(self, doc_ids):
        return [self.passages[d] for d in doc_ids]

    def find(self, doc_ids):
        indices = {doc_id: index for index, doc_id in enumerate(self.passages)}
        return [indices.get(doc_id, -1) for doc_id in doc_ids]


class InOrder:
    """A retriever that finds d0, d1, .. for every query."""

    def __init__(self, size):
        self.size = size

    def search(self, texts, depth):
        count = min(self.size, depth)
        return [Hits(tuple(f"d{i}" for i in range(count)), tuple(float(-i) for i in range(count))) for _ in texts]


def corpus_of(size):
    return ListCorpus([Passage(f"d{i}", " ".join(WORDS[: 1 + i % 4])) for i in range(size)])


def made(name, size, *, skip=0, seed=42):
    context = BuildContext(retriever=InOrder(size), seed=seed)
    miner = {
        "bm25": lambda: Bm25Miner(Bm25Config(), context),
        "dense": lambda: DenseMiner(DenseConfig(skip=skip), context),
        "hybrid": lambda: HybridMiner(HybridConfig(), context),
        "mixed": lambda: MixedMiner(MixedConfig(), context),
        "random": lambda: RandomMiner(RandomConfig(), context),
    }[name]()
    miner.index(corpus_of(size))
    return miner


def requests_of(positives):
    return [MiningRequest(f"q{n}", WORDS[n % 4], frozenset(f"d{p}" for p in ps)) for n, ps in enumerate(positives)]


@pytest.mark.parametrize("name", ["bm25", "dense", "hybrid", "mixed", "random"])
@given(
    size=st.integers(1, 60),
    positives=st.lists(st.sets(st.integers(0, 70), max_size=20), min_size=1, max_size=6),
    depth=st.integers(1, 80),
)
def test_never_a_positive_never_twice_never_too_many(name, size, positives, depth):
    requests = requests_of(positives)
    mined = list(made(name, size).mine(iter(requests), depth))
    assert [m.query_id for m in mined] == [r.query_id for r in requests]
    for request, found in zip(requests, mined, strict=True):
        assert not request.positives & set(found.doc_ids)
        assert len(set(found.doc_ids)) == len(found.doc_ids) == len(found.scores) <= depth
        assert list(found.scores) == sorted(found.scores, reverse=True)
        others = {f"d{i}" for i in range(size)} - request.positives
        if name != "bm25":
            assert len(found.doc_ids) == min(depth, len(others))


def test_the_mixed_miner_takes_from_both_rankings_in_turns():
    requests = requests_of([{1}, set(), {2, 3, 5, 8}, {0}])
    sources = [list(made(name, 40).mine(requests, 7)) for name in ("bm25", "dense")]
    for mined, lexical, dense in zip(made("mixed", 40).mine(requests, 7), *sources, strict=True):
        expected = []
        for rank in range(7):
            for ranking in (lexical.doc_ids, dense.doc_ids):
                if rank < len(ranking) and ranking[rank] not in expected:
                    expected.append(ranking[rank])
        assert list(mined.doc_ids) == expected[:7]
        assert mined.dropped == Counter(lexical.dropped) + Counter(dense.dropped)
        assert mined.positive_scores == {}


def test_the_hybrid_miner_ranks_by_the_fused_scores_and_scores_positives():
    requests = requests_of([{1}, set(), {2, 3, 5, 8}, {0}])
    texts = [request.text for request in requests]
    bm25 = Bm25Retriever().index(corpus_of(40))
    for weight in (0.0, 0.3, 1.0):
        miner = HybridMiner(HybridConfig(weight=weight), BuildContext(retriever=InOrder(40)))
        miner.index(corpus_of(40))
        fused = HybridRetriever(bm25, InOrder(40), weight).search(texts, 40)
        for request, hits, mined in zip(requests, fused, miner.mine(requests, 7), strict=True):
            kept = [(doc_id, score) for doc_id, score in hits.pairs() if doc_id not in request.positives]
            assert list(zip(mined.doc_ids, mined.scores, strict=True)) == kept[:7]
            assert mined.positive_scores == {d: s for d, s in hits.pairs() if d in request.positives}
            assert all(0 <= score <= 1 for score in mined.scores)


def test_empty_slots_of_a_search_are_not_fused():
    class Few(InOrder):
        def search(self, texts, depth):
            return [(["d3", None, ""], [2.0, 1.0, -3.4028234663852886e38]) for _ in texts]

    miner = HybridMiner(HybridConfig(weight=1.0), BuildContext(retriever=Few(9)))
    miner.index(ListCorpus([Passage(f"d{i}", "other") for i in range(9)]))
    assert [m.doc_ids for m in miner.mine(requests_of([set()]), 5)] == [("d3",)]


@pytest.mark.parametrize("name", ["bm25", "dense", "hybrid", "mixed", "random"])
def test_a_query_is_answered_alike_alone_and_among_others(name):
    requests = requests_of([{1}, set(), {2, 3, 5, 8}, {0}])
    together = list(made(name, 40).mine(requests, 7))
    alone = [next(made(name, 40).mine([request], 7)) for request in requests]
    assert together == alone


@pytest.mark.parametrize("name", ["bm25", "dense", "hybrid", "mixed", "random"])
def test_requests_are_taken_as_negatives_are_asked_for(name):
    taken = []

    def endless():
        number = 0
        while True:
            taken.append(number)
            yield MiningRequest(f"q{number}", "alpha", frozenset())
            number += 1

    mined = made(name, 10).mine(endless(), 3)
    assert next(mined).query_id == "q0"
    assert len(taken) <= 1024


def test_positives_at_the_top_do_not_cost_negatives():
    found = next(made("dense", 50).mine([MiningRequest("q", "x", frozenset({"d0", "d2"}))], 4))
    assert found.doc_ids == ("d1", "d3", "d4", "d5")
    found = next(made("dense", 50, skip=2).mine([MiningRequest("q", "x", frozenset({"d0", "d2"}))], 4))
    assert found.doc_ids == ("d4", "d5", "d6", "d7")


def test_bm25_gives_the_best_first_and_only_what_shares_a_word():
    miner = Bm25Miner(Bm25Config())
    miner.index(ListCorpus([Passage("a", "red apple"), Passage("b", "red"), Passage("c", "blue"), Passage("d", "red")]))
    found = next(miner.mine([MiningRequest("q", "red apple", frozenset({"b"}))], 10))
    assert found.doc_ids == ("a", "d")


def test_random_follows_seed_and_query_and_is_uniform():
    def draw(seed, query):
        return next(made("random", 500, seed=seed).mine([MiningRequest(query, "x", frozenset())], 9))

    assert draw(1, "q").doc_ids == draw(1, "q").doc_ids
    assert len({draw(1, "q").doc_ids, draw(2, "q").doc_ids, draw(1, "p").doc_ids}) == 3
    miner, counts = made("random", 100), dict.fromkeys((f"d{i}" for i in range(100)), 0)
    for mined in miner.mine((MiningRequest(f"q{n}", "x", frozenset()) for n in range(2000)), 10):
        for doc_id in mined.doc_ids:
            counts[doc_id] += 1
    # 200 expected, standard deviation 13.4: five of them either way
    assert 133 < min(counts.values()) <= max(counts.values()) < 267


def test_registered_and_honest_about_what_they_lack(tmp_path):
    registry = Registry(drkit_components())
    (tmp_path / "a.run").write_text("q Q0 d1 1 2.0 tag\n")
    configs = {"run-file": RunFileConfig(path=str(tmp_path / "a.run"))}
    for name in source_names(registry):
        context = BuildContext(retriever=InOrder(3), negatives={"q": ["d1"]})
        miner = registry.build("miner", name, configs.get(name), context=context)
        with pytest.raises(DrkitError, match="call index"):
            next(miner.mine([MiningRequest("q", "x", frozenset())], 1))
    with pytest.raises(DrkitError, match=r"\bdense .*retriever=\.\.\."):
        registry.build("miner", "dense", context=BuildContext())
    with pytest.raises(DrkitError, match="run-file:PATH"):
        registry.build("miner", "run-file", context=BuildContext())
    with pytest.raises(DrkitError, match=r"negatives .*bm25 or dense"):
        registry.build("miner", "given", context=BuildContext()).index(corpus_of(2))


@pytest.mark.parametrize("name", ["bm25", "dense", "hybrid", "mixed", "random"])
def test_an_excluded_passage_is_no_negative_and_costs_none(name):
    miner, depth = made(name, 30), 25
    plain = next(miner.mine([MiningRequest("d3", "alpha", frozenset({"d1"}))], 28))
    own = plain.doc_ids[0]
    found = next(miner.mine([MiningRequest("d3", "alpha", frozenset({"d1"}), frozenset({own}))], depth))
    assert len(found.doc_ids) == depth
    assert set(found.doc_ids).isdisjoint({own, "d1"})
    if name != "random":  # which ranks nothing
        assert found.dropped["own-passage"] == (2 if name == "mixed" else 1), "once in each ranking"
        assert found.doc_ids == plain.doc_ids[1 : depth + 1]


@pytest.mark.parametrize("name", ["bm25", "dense"])
def test_a_query_without_text_gets_none_and_is_counted(name):
    requests = [MiningRequest("a", "alpha", frozenset()), MiningRequest("b", " \n", frozenset({"d1"}))]
    found = list(made(name, 30).mine([*requests, *requests], 3))
    assert [len(m.doc_ids) for m in found] == [3, 0, 3, 0]
    assert found[1].dropped == {"empty-query": 1}


def test_positives_that_take_every_rank_leave_nothing():
    found = next(made("dense", 6).mine([MiningRequest("q", "x", frozenset(f"d{i}" for i in range(6)))], 4))
    assert found.doc_ids == found.scores == ()
    assert found.dropped == {"judged-positive": 6}


def test_missing_hits_and_repetitions_are_no_negatives():
    class Sloppy:
        def search(self, texts, depth):
            ids = ("d1", -1, "d1", "d2", None, "d3")
            return [(ids, (5.0, 4.0, 3.0, 2.0, 1.0, -3.4028234663852886e38)) for _ in texts]

    miner = DenseMiner(DenseConfig(), BuildContext(retriever=Sloppy()))
    miner.index(corpus_of(9))
    found = next(miner.mine([MiningRequest("q", "x", frozenset({"d2"}))], 5))
    assert found.doc_ids == ("d1",)
    assert found.dropped == {"missing": 3, "repeated": 1, "judged-positive": 1}


def test_positives_are_scored_as_the_search_scores_them():
    corpus = corpus_of(12)
    miner = Bm25Miner(Bm25Config())
    miner.index(corpus)
    everything = next(miner.mine([MiningRequest("q", "alpha delta", frozenset())], 12))
    scores = dict(zip(everything.doc_ids, everything.scores, strict=True))
    found = next(miner.mine([MiningRequest("q", "alpha delta", frozenset({"d3", "d4", "nowhere"}))], 12))
    assert found.positive_scores == {"d3": scores["d3"], "d4": scores["d4"]}


@pytest.mark.parametrize("query", ["a b", "é\u2003ü", "100%"])
def test_a_run_file_of_adversarial_ids(tmp_path, query):
    names = ["one two", "\u00e9\u3000x", "50%", "#", "'"]
    write_run(tmp_path / "a.run", [(query, [(name, 9.0 - i) for i, name in enumerate([*names, "not here"])])], "x")
    miner = RunFileMiner(RunFileConfig(path=str(tmp_path / "a.run")))
    miner.index(ListCorpus([Passage(name, "text") for name in names]))
    lacking = MiningRequest("other", "text", frozenset({"50%"}))
    found = list(miner.mine([lacking, MiningRequest(query, "text", frozenset({"50%", "gone"}))], 3))
    assert found[0] == Mined("other", (), (), dropped={"query-not-in-run": 1})
    assert found[1].doc_ids == ("one two", "\u00e9\u3000x", "#")
    assert found[1].positive_scores == {"50%": 7.0}
    assert found[1].dropped == {"judged-positive": 1, "unknown-id": 1}


def test_a_run_file_is_found_in_any_order_past_one_batch(tmp_path):
    rows = [(f"q{n}", [(f"d{(n + i) % 40}", float(-i)) for i in range(5)]) for n in range(700)]
    write_run(tmp_path / "a.run", rows, "x")
    miner = RunFileMiner(RunFileConfig(path=str(tmp_path / "a.run")))
    miner.index(corpus_of(40))
    asked = [MiningRequest(q, "x", frozenset()) for q, _ in reversed(rows)]
    assert [m.doc_ids for m in miner.mine(asked, 5)] == [tuple(d for d, _ in hits) for _, hits in reversed(rows)]


def test_a_file_that_is_no_run_is_told_with_its_line(tmp_path):
    (tmp_path / "a.run").write_text("q Q0 d1 1 2.0 tag\nq d2\n")
    miner = RunFileMiner(RunFileConfig(path=str(tmp_path / "a.run")))
    with refused("6 columns", "got 2", where="a.run:2"):
        miner.index(corpus_of(3))


def test_given_negatives_come_in_their_order_without_positives_and_strangers():
    context = BuildContext(negatives={"q": ["d5", "d1", "gone", "d2", "d5", "d3"]})
    miner = GivenMiner(GivenConfig(), context)
    miner.index(corpus_of(9))
    asked = [MiningRequest("q", "x", frozenset({"d1"})), MiningRequest("p", "x", frozenset())]
    one, other = miner.mine(asked, 10)
    assert one.doc_ids == ("d5", "d2", "d3")
    assert one.dropped == {"judged-positive": 1, "repeated": 1, "unknown-id": 1}
    assert other.doc_ids == ()


@pytest.mark.parametrize("name", ["bm25", "dense", "given", "random", "refresh"])
def test_every_source_keeps_the_contract(name):
    check_miner(name)


def test_the_run_file_source_keeps_the_contract(tmp_path):
    ids = [passage.doc_id for passage in ToyCorpus()]
    rows = ((r.query_id, [(d, 1.0 - i) for i, d in enumerate(ids[::-1])]) for r in toy_requests(3000))
    write_run(tmp_path / "toy.run", rows, "toy")
    check_miner("run-file", RunFileConfig(path=str(tmp_path / "toy.run")))
