"""Miners never give a judged positive, never one passage twice, and the same for the same seed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.builtin import drkit_components
from drkit.core.registry import Registry
from drkit.core.types import BuildContext, MiningRequest, Passage
from drkit.errors import DrkitError
from drkit.miners import Bm25Config, Bm25Miner, DenseConfig, DenseMiner, RandomConfig, RandomMiner
from drkit.search.hits import Hits

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
        "random": lambda: RandomMiner(RandomConfig(), context),
    }[name]()
    miner.index(corpus_of(size))
    return miner


def requests_of(positives):
    return [MiningRequest(f"q{n}", WORDS[n % 4], frozenset(f"d{p}" for p in ps)) for n, ps in enumerate(positives)]


@pytest.mark.parametrize("name", ["bm25", "dense", "random"])
@settings(deadline=None, max_examples=40)
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


@pytest.mark.parametrize("name", ["bm25", "dense", "random"])
def test_a_query_is_answered_alike_alone_and_among_others(name):
    requests = requests_of([{1}, set(), {2, 3, 5, 8}, {0}])
    together = list(made(name, 40).mine(requests, 7))
    alone = [next(made(name, 40).mine([request], 7)) for request in requests]
    assert together == alone


@pytest.mark.parametrize("name", ["bm25", "dense", "random"])
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
    assert len(taken) <= 256


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


def test_registered_and_honest_about_what_they_lack():
    registry = Registry(drkit_components())
    for name in registry.names("miner"):
        miner = registry.build("miner", name, context=BuildContext(retriever=InOrder(3)))
        with pytest.raises(DrkitError, match="call index"):
            next(miner.mine([MiningRequest("q", "x", frozenset())], 1))
    with pytest.raises(DrkitError, match="needs a retriever"):
        registry.build("miner", "dense", context=BuildContext())
    with pytest.raises(DrkitError, match="is empty"):
        next(made("bm25", 3).mine([MiningRequest("q", " ", frozenset())], 1))
