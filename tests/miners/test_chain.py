"""A chain is its source and its filters one after another, streamed; each filter against the rule written out."""

from __future__ import annotations

import json

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.builtin import drkit_components
from drkit.core.registry import Registry, installed
from drkit.core.spec import Choice
from drkit.core.types import BuildContext, Mined, MiningRequest, Passage
from drkit.data.corpus import open_collection
from drkit.data.specs import BeirConfig
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from drkit.miners import (
    Chain,
    CrossEncoderFilter,
    CrossEncoderFilterConfig,
    DenseConfig,
    DenseMiner,
    HasAnswerConfig,
    HasAnswerFilter,
    MarginConfig,
    MarginFilter,
    MaxScoreConfig,
    MaxScoreFilter,
    RandomConfig,
    RanksConfig,
    RanksFilter,
    SameTextConfig,
    SameTextFilter,
    build_chain,
)
from drkit.miners.chain import mining_requests
from drkit.testing import check_filter, check_miner
from drkit.testing.toys import ToyReranker, toy_context, toy_requests
from tests.miners.test_miners import InOrder, ListCorpus, corpus_of

SCORES = st.floats(-20, 20, width=32)


def mined(scores, positives=(), doc_ids=None):
    ids = tuple(doc_ids or (f"d{i}" for i in range(len(scores))))
    return Mined("q", ids, tuple(scores), dict(positives))


def keep(part, found, positives=(), corpus=None, text="text"):
    request = MiningRequest("q", text, frozenset(positives))
    return next(part.keep([(request, found)], corpus or corpus_of(1)))


@given(
    scores=st.lists(SCORES, max_size=12),
    positives=st.dictionaries(st.sampled_from(["p", "r", "s"]), SCORES),
    absolute=st.none() | st.floats(0, 5),
    share=st.floats(0.1, 1),
    which=st.sampled_from(["max", "min"]),
)
def test_margin_is_its_rule(scores, positives, absolute, share, which):
    scores = sorted(scores, reverse=True)
    config = MarginConfig(absolute=absolute, share=share, positive=which)
    left = keep(MarginFilter(config), mined(scores, positives))
    stay = list(scores)
    if positives:
        p = max(positives.values()) if which == "max" else min(positives.values())
        stay = [s for s in scores if s <= (p - absolute if absolute is not None else p - (1 - share) * abs(p))]
        assert absolute is not None or all(s <= p for s in stay), "no threshold lies above the positive"
    assert list(left.scores) == stay
    assert left.dropped == ({"margin": len(scores) - len(stay)} if len(stay) < len(scores) else {})


@given(size=st.integers(0, 30), first=st.integers(1, 25), more=st.integers(0, 25))
def test_ranks_are_counted_from_one_and_included(size, first, more):
    part = RanksFilter(RanksConfig(keep=f"{first}-{first + more}"))
    ids = [f"d{rank}" for rank in range(1, size + 1)]
    left = keep(part, mined([0.0] * size, doc_ids=ids))
    assert list(left.doc_ids) == [f"d{rank}" for rank in range(first, first + more + 1) if rank <= size]
    assert part.candidate_depth(5) == first + more


@pytest.mark.parametrize("text", ["0-5", "5-4", "5", "a-b", "1-2-3", "-1-3"])
def test_ranks_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="FIRST-LAST"):
        RanksConfig(keep=text)


def test_max_score():
    left = keep(MaxScoreFilter(MaxScoreConfig(maximum=2.0)), mined([3.0, 2.0, 1.0]))
    assert left.doc_ids == ("d1", "d2")
    assert left.dropped == {"max-score": 1}


def test_copies_of_a_positive_are_dropped_whatever_their_white_space():
    corpus = ListCorpus(
        [
            Passage("p", "The  red\nfox"),
            Passage("a", "the red fox"),
            Passage("b", "red fox"),
            Passage("c", "The red fox"),
        ]
    )
    found = mined([3.0, 2.0, 1.0], doc_ids="abc")
    assert keep(SameTextFilter(SameTextConfig()), found, {"p"}, corpus).doc_ids == ("b",)
    strict = keep(SameTextFilter(SameTextConfig(ignore_case=False)), found, {"p", "not in the corpus"}, corpus)
    assert strict.doc_ids == ("a", "b")
    assert strict.dropped == {"same-text": 1}
    assert keep(SameTextFilter(SameTextConfig()), found, {"nowhere"}, corpus).doc_ids == tuple("abc")


class Lengths:
    """A re-ranker that scores a passage by its length, and counts its calls."""

    def __init__(self):
        self.calls = []

    def score(self, pairs):
        self.calls.append(len(pairs))
        return [float(len(passage)) for _, passage in pairs]


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    positives=st.lists(st.integers(1, 9), max_size=3),
    margin=st.none() | st.integers(0, 3),
    maximum=st.none() | st.integers(1, 9),
    which=st.sampled_from(["max", "min"]),
)
def test_cross_encoder_filter_is_its_rule(lengths, positives, margin, maximum, which):
    passages = {f"d{i}": n for i, n in enumerate(lengths)} | {f"p{i}": n for i, n in enumerate(positives)}
    corpus = ListCorpus([Passage(name, "x" * n) for name, n in passages.items()])
    config = CrossEncoderFilterConfig(margin=margin, maximum=maximum, positive=which)
    part = CrossEncoderFilter(config, BuildContext(reranker=Lengths()))
    judged = {f"p{i}" for i in range(len(positives))} | {"lost"}
    left = keep(part, mined([0.0] * len(lengths)), judged, corpus)
    stay = []
    for number, n in enumerate(lengths):
        close = margin is not None and positives and n > (max if which == "max" else min)(positives) - margin
        if not close and not (maximum is not None and n > maximum):
            stay.append(f"d{number}")
    assert list(left.doc_ids) == stay


def test_pairs_of_many_queries_are_scored_at_once():
    reranker = Lengths()
    part = CrossEncoderFilter(CrossEncoderFilterConfig(), BuildContext(reranker=reranker))
    corpus = corpus_of(5)
    pairs = [(MiningRequest(f"q{n}", "x", frozenset({"d4"})), mined([2.0, 1.0])) for n in range(100)]
    assert len(list(part.keep(iter(pairs), corpus))) == 100
    assert reranker.calls == [64 * 3, 36 * 3]
    with pytest.raises(DrkitError, match=r"cross-encoder-filter:MODEL.*--reranker MODEL.*reranker="):
        CrossEncoderFilter(CrossEncoderFilterConfig(), BuildContext())


@pytest.fixture
def answers(tmp_path):
    """Write a file with answers by query id, and return the filter that reads it."""

    def made(rows, suffix=".jsonl"):
        path = tmp_path / f"answers{suffix}"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) if suffix == ".jsonl" else rows, "utf-8")
        return HasAnswerFilter(HasAnswerConfig(path=str(path)))

    return made


@pytest.mark.parametrize(
    ("text", "answer", "is_in"),
    [
        ("It was Ada Lovelace.", "ada  lovelace", True),
        ("It was Ada King Lovelace.", "Ada Lovelace", False),
        ("No. 50 of 5!", "5", True),
        ("No. 50", "5", False),
        ("the U.S. army", "u.s.", True),
        ("the US army", "U.S.", False),
        ("a cafe\u0301 in Paris", "Caf\u00e9", True),
        ("a cafe in Paris", "Caf\u00e9", False),
        ("STRASSE", "stra\u00dfe", True),
        ("snake_case", "snake", True),
        ("\u6771\u4eac \u306f", "\u6771\u4eac", True),
        ("anything", " ", False),
    ],
)
def test_an_answer_is_in_a_passage_as_tokens_in_a_row(answers, text, answer, is_in):
    corpus = ListCorpus([Passage("d0", text), Passage("d1", "nothing")])
    kept = keep(answers([{"query_id": "q", "answers": [answer]}]), mined([2.0, 1.0]), corpus=corpus)
    assert kept.doc_ids == (("d1",) if is_in else ("d0", "d1"))
    assert kept.dropped == ({"has-answer": 1} if is_in else {})


def test_titles_and_any_of_several_answers_count(answers):
    corpus = ListCorpus([Passage("d0", "a text", "Ada"), Passage("d1", "by Babbage"), Passage("d2", "by hand")])
    found = [
        (MiningRequest(name, "?", frozenset()), evolve(mined([3.0, 2.0, 1.0]), query_id=name)) for name in ("q0", "q1")
    ]
    part = answers([{"_id": "q0", "answers": ["Ada", "Babbage"]}, {"_id": "q1", "answers": []}])
    assert [kept.doc_ids for kept in part.keep(found, corpus)] == [("d2",), ("d0", "d1", "d2")]
    check_filter(lambda: answers([{"_id": request.query_id, "answers": ["the"]} for request in toy_requests(1000)]))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"query_id": "q"}], r"jsonl:1: 'answers' .*list .*got None"),
        ([{"query_id": "q", "answers": [5]}], r"jsonl:1: 'answers' .*list .*got \[5\]"),
        ([{"answers": ["a"]}], r"jsonl:1: .*'query_id', '_id', 'id'"),
        ([{"query_id": "other", "answers": ["a"]}], r"answers\.jsonl .*'q';"),
    ],
)
def test_answers_that_do_not_fit_are_refused(answers, rows, said):
    corpus = ListCorpus([Passage("d0", "a")])
    with pytest.raises(DrkitError, match=said):
        keep(answers(rows), mined([1.0]), corpus=corpus)
    with pytest.raises(DrkitError, match=r"'q' .*collection .*answers.* has-answer:PATH"):
        keep(HasAnswerFilter(HasAnswerConfig()), mined([1.0]), corpus=corpus)


def test_answers_come_with_the_queries_of_a_collection(tmp_path):
    rows = {
        "q0": {"answers": ["Ada", "Babbage"]},
        "q1": {"answers": "hand"},
        "q2": {"answers": []},
        "q3": {"answers": [5]},
    }
    queries = [{"_id": name, "text": "who?", **row} for name, row in rows.items()]
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    texts = {
        "corpus": [{"_id": f"d{n}", "text": text} for n, text in enumerate(("by Ada", "by hand"))],
        "queries": queries,
    }
    for name, lines in texts.items():
        (tmp_path / "beir" / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    judged = "".join(f"{name}\td0\t1\n" for name in rows)
    (tmp_path / "beir" / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    source = installed().registry.build("collection", "beir", BeirConfig(path=str(tmp_path / "beir")))
    write_collection(source, tmp_path / "stored")
    collection = open_collection(tmp_path / "stored")
    requests = {request.query_id: request for request in mining_requests(collection)}
    assert [requests[name].answers for name in rows] == [("Ada", "Babbage"), ("hand",), (), None]
    found = [(requests[name], evolve(mined([2.0, 1.0]), query_id=name)) for name in ("q0", "q1", "q2")]
    part = HasAnswerFilter(HasAnswerConfig())
    assert [kept.doc_ids for kept in part.keep(found, collection.corpus)] == [("d1",), ("d0",), ("d0", "d1")]
    (tmp_path / "beir" / "queries.jsonl").write_text("".join(f'{{"_id": "{name}", "text": "who?"}}\n' for name in rows))
    write_collection(source, tmp_path / "plain")
    assert not (tmp_path / "plain" / "train" / "answers.arrow").exists()
    assert all(request.answers is None for request in mining_requests(open_collection(tmp_path / "plain")))


@pytest.mark.parametrize("name", ["cross-encoder-filter", "margin", "max-score", "ranks", "same-text"])
def test_every_filter_keeps_the_contract(name):
    check_filter(name)


def chain(*filters, size=500, depth=200):
    made = Chain(DenseMiner(DenseConfig(depth=depth), BuildContext(retriever=InOrder(size))), filters)
    made.index(corpus_of(size))
    return made


def test_a_chain_is_its_parts_one_after_another():
    parts = [RanksFilter(RanksConfig(keep="3-40")), MaxScoreFilter(MaxScoreConfig(maximum=-10.0))]
    requests = [MiningRequest(f"q{n}", "x", frozenset({f"d{n}"})) for n in range(20)]
    by_hand = list(chain().source.mine(requests, 200))
    for part in parts:
        by_hand = list(part.keep(zip(requests, by_hand, strict=True), corpus_of(500)))
    assert list(chain(*parts).mine(iter(requests), 200)) == by_hand


def test_the_source_is_read_as_deep_as_the_filters_need():
    asked = MiningRequest("q", "x", frozenset())
    assert len(next(chain().mine([asked], 7)).doc_ids) == 7
    deep = chain(RanksFilter(RanksConfig(keep="251-300")))
    assert deep.depth == 300
    assert next(deep.mine([asked], 7)).doc_ids == tuple(f"d{i}" for i in range(250, 257))
    margin = chain(MaxScoreFilter(MaxScoreConfig(maximum=-150.0)))
    assert next(margin.mine([asked], 7)).doc_ids == tuple(f"d{i}" for i in range(150, 157))
    assert next(margin.mine([asked], 7)).dropped == {"max-score": 150}


def test_a_chain_holds_a_window_of_requests():
    taken = []

    def endless():
        number = 0
        while True:
            taken.append(number)
            yield MiningRequest(f"q{number}", "alpha", frozenset({"d1"}))
            number += 1

    parts = [SameTextFilter(SameTextConfig()), CrossEncoderFilter(CrossEncoderFilterConfig(), toy_context())]
    found = chain(*parts, size=30).mine(endless(), 3)
    assert [next(found).query_id for _ in range(300)] == [f"q{n}" for n in range(300)]
    assert len(taken) <= 1024 + 2 * 64


def test_a_chain_is_a_miner_and_keeps_the_contract():
    def made():
        context = toy_context()
        source = DenseMiner(DenseConfig(), context)
        return Chain(source, [SameTextFilter(SameTextConfig()), RanksFilter(RanksConfig(keep="2-30"))])

    check_miner(made)


@settings(deadline=None, max_examples=30)
@given(
    size=st.integers(1, 40),
    positives=st.lists(st.sets(st.integers(0, 50), max_size=45), min_size=1, max_size=5),
    depth=st.integers(1, 50),
    ranks=st.tuples(st.integers(1, 20), st.integers(0, 20)),
)
def test_no_positive_no_repetition_and_every_candidate_accounted_for(size, positives, depth, ranks):
    requests = [MiningRequest(f"q {n}", "alpha", frozenset(f"d{p}" for p in ps)) for n, ps in enumerate(positives)]
    part = RanksFilter(RanksConfig(keep=f"{ranks[0]}-{sum(ranks)}"))
    for request, found in zip(requests, chain(part, size=size).mine(iter(requests), depth), strict=True):
        others = [f"d{i}" for i in range(size) if f"d{i}" not in request.positives]
        assert list(found.doc_ids) == others[ranks[0] - 1 : sum(ranks)][:depth]
        # the source reads 200 deep, more than there is: all is seen
        kept = len(others[ranks[0] - 1 : sum(ranks)])
        assert kept + sum(found.dropped.values()) == size


def test_a_source_that_lets_a_positive_through_is_caught():
    class Careless:
        def index(self, corpus):
            pass

        def mine(self, requests, depth):
            for request in requests:
                yield Mined(request.query_id, ("d1", "d2"), (2.0, 1.0))

    made = Chain(Careless())
    with pytest.raises(DrkitError, match="call index"):
        next(made.mine([MiningRequest("q", "x", frozenset())], 2))
    made.index(corpus_of(3))
    found = next(made.mine([MiningRequest("q", "x", frozenset({"d1"}))], 2))
    assert found.doc_ids == ("d2",)
    assert found.dropped == {"judged-positive": 1}
    found = next(made.mine([MiningRequest("d2", "x", frozenset({"d1"}), frozenset({"d2"}))], 2))
    assert found.doc_ids == ()
    assert found.dropped == {"judged-positive": 1, "own-passage": 1}


@pytest.mark.parametrize("answers", [["b", "a"], ["a"], ["a", "b", "c"]])
def test_a_part_that_answers_otherwise_than_asked_is_named(answers):
    class Confused:
        def index(self, corpus):
            pass

        def mine(self, requests, depth):
            list(requests)
            yield from (Mined(name, (), ()) for name in answers)

    made = Chain(Confused())
    made.index(corpus_of(3))
    with pytest.raises(DrkitError, match=r"the miner Confused .*.*request"):
        list(made.mine([MiningRequest(q, "x", frozenset()) for q in "ab"], 2))


def test_a_chain_is_built_of_a_recipes_choices():
    registry = Registry(drkit_components())
    context = BuildContext(retriever=InOrder(9), reranker=ToyReranker())
    choices = [Choice("random", RandomConfig(depth=30)), Choice("ranks", RanksConfig(keep="1-50"))]
    made = build_chain(choices, registry, context)
    assert made.depth == 50
    made.index(corpus_of(100))
    assert len(next(made.mine([MiningRequest("q", "x", frozenset())], 60)).doc_ids) == 50
    with pytest.raises(
        DrkitError,
        match=r"'ranks' comes first.*before it: bm25, dense, given, hybrid, mixed, random, refresh, run-file",
    ):
        build_chain(choices[1:], registry, context)
    with pytest.raises(DrkitError, match=r"'random' .*'random'; .*first"):
        build_chain([choices[0], choices[0]], registry, context)
    with pytest.raises(DrkitError, match="source first: bm25"):
        build_chain([], registry, context)
