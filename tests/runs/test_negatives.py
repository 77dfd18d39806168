"""Mined negatives on disk, and the counts that go with them."""

import numpy as np
import pytest
from attrs import evolve

from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.core.types import Judgement, Mined, Passage, Query
from drkit.data.corpus import open_collection
from drkit.data.writing import write_collection
from drkit.errors import DrkitError
from drkit.miners.chain import read_negatives, write_negatives
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan

PARTS = installed()


class Few:
    name = "few"

    def passages(self):
        return (Passage(name, "text") for name in ("d 0", "d é", "d2", "d3"))

    def splits(self):
        return ("train",)

    def queries(self, split):
        return iter([Query("q 1", "one"), Query("ü", "two")])

    def judgements(self, split):
        return iter([Judgement("q 1", "d 0", 1), Judgement("ü", "d2", 1)])

    def describe(self):
        return {}


@pytest.fixture
def corpus(tmp_path):
    write_collection(Few(), tmp_path / "collection")
    return open_collection(tmp_path / "collection").corpus


def test_written_read_and_counted(tmp_path, corpus):
    mined = [
        Mined("q 1", ("d é", "d3"), (2.0, 1.0), {"d 0": 3.0}, {"margin": 2, "judged-positive": 1}),
        Mined("ü", (), (), {}, {"margin": 3}),
    ]
    counts = write_negatives(iter(mined), corpus, tmp_path)
    assert counts == {
        "queries": 2,
        "negatives": 2,
        "queries_without": 1,
        "negatives_per_query": 1.0,
        "queries_with_unscored_positives": 1,
        "dropped": {"judged-positive": 1, "margin": 5},
    }
    read = read_negatives(tmp_path)
    assert {query: indices.tolist() for query, indices in read.items()} == {"q 1": [1, 3], "ü": []}
    assert all(indices.dtype == np.int64 for indices in read.values())


def test_more_than_one_block(tmp_path, corpus):
    mined = [Mined(f"q{n}", ("d2",) * (n % 3 == 0), (1.0,) * (n % 3 == 0)) for n in range(9000)]
    write_negatives(iter(mined), corpus, tmp_path, "other.arrow")
    read = read_negatives(tmp_path, "other.arrow")
    assert len(read) == 9000
    assert all(indices.tolist() == [2] * (n % 3 == 0) for n, indices in enumerate(read.values()))


def test_none_at_all(tmp_path, corpus):
    assert write_negatives((), corpus, tmp_path)["queries"] == 0
    assert read_negatives(tmp_path) == {}


def test_a_stream_that_breaks_leaves_no_file(tmp_path, corpus):
    with pytest.raises(DrkitError, match="unknown passage 'nowhere'"):
        write_negatives([Mined("q", ("nowhere",), (1.0,))], corpus, tmp_path)
    assert not list(tmp_path.glob("*.arrow"))


def test_the_first_round_mines_with_the_encoder_of_another_run(beir, tmp_path):
    """As the next round of that run would."""
    tiny = (
        "encoder.layers=1",
        "encoder.vocab_size=120",
        "encoder.hidden=16",
        "encoder.heads=2",
        "finetune.max_steps=4",
    )
    rounds = '[{name="retriever-1", miners=["bm25"]}, {name="retriever-2", miners=["dense"], start="previous"}]'
    requests = {
        "first": ComposeRequest(pipeline="dpr", settings=("pretrain=none", "evaluation.export=last", *tiny)),
        "both": ComposeRequest(pipeline="dpr", settings=("pretrain=none", *tiny, f"finetune.rounds={rounds}")),
        "next": ComposeRequest(
            encoder=str(tmp_path / "first" / "encoder"),
            miners=("dense",),
            scale="small",
            settings=("pretrain=none", "finetune.max_steps=4"),
        ),
    }
    for name, request in requests.items():
        recipe = compose(evolve(request, collection=f"beir:{beir}", name=name), PARTS)
        execute(
            plan(recipe, PARTS.registry).stages, tmp_path / name, recipe, registry=PARTS.registry, progress=Silent()
        )
    own, other = (
        read_negatives(tmp_path / run / f"negatives-{owner}")
        for run, owner in (("next", "retriever-1"), ("both", "retriever-2"))
    )
    assert len(own) == 12
    assert {query: indices.tolist() for query, indices in own.items()} == {q: i.tolist() for q, i in other.items()}
