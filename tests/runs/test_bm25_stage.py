"""The stage of BM25: k1 and b are given, or the best of several on the dev queries."""

import pytest

from drkit.core.types import Judgement, Passage, Query
from drkit.data import write_collection
from drkit.errors import DrkitError
from drkit.evaluate import evaluate
from drkit.runs.making.retriever import index_words
from drkit.runs.stages.retriever import BM25_STAGE, Bm25Settings
from drkit.search import Bm25Retriever
from tests.rerank.toys import stage_run

LONG = "apple " + " ".join(f"filler{n}" for n in range(60))
PASSAGES = [
    *(Passage(f"long{n}", f"{LONG} {LONG} tail{n}") for n in range(3)),
    *(Passage(f"short{n}", f"apple pie {n}") for n in range(3)),
]


class Lengths:
    """Passages of two lengths; `wanted` are judged relevant to the word that all have."""

    name = "lengths"

    def __init__(self, wanted):
        self.wanted = wanted

    def passages(self):
        return iter(PASSAGES)

    def splits(self):
        return ("dev",)

    def queries(self, split):
        return iter([Query(name, "apple") for name in "qr"])

    def judgements(self, split):
        return iter([Judgement(query, name, 1) for query in "qr" for name in self.wanted])

    def describe(self):
        return {}


def built(tmp_path, wanted, k1, b, measure="RR@10", exclude_self=False):
    folder = tmp_path / "collection"
    folder.mkdir()
    write_collection(Lengths(wanted), folder)
    settings = Bm25Settings(
        data_sets=(),
        measure=measure,
        depth=10,
        exclude_self=exclude_self,
        k1=k1,
        b=b,
        split_queries=("unknown",),
        language="english",
        query_language="same",
    )
    inputs = {"passages": folder / "passages", "dev": folder / "dev"}
    run = stage_run(BM25_STAGE, tmp_path / "bm25", inputs, settings)
    return index_words(run), Bm25Retriever.load(tmp_path / "bm25")


@pytest.mark.parametrize(
    ("kind", "best"), [("long", 0.0), ("short", 1.0)], ids=["long texts are relevant", "short ones are"]
)
def test_the_values_are_the_best_on_the_dev_queries(tmp_path, kind, best):
    facts, retriever = built(tmp_path, [f"{kind}{n}" for n in range(3)], (1.2, 0.1), (1.0, 0.0))
    assert facts["b"] == best
    assert set(facts["means"]) == {"k1 1.2, b 1", "k1 1.2, b 0", "k1 0.1, b 1", "k1 0.1, b 0"}
    assert facts["means"][f"k1 {facts['k1']:g}, b {facts['b']:g}"] == max(facts["means"].values()) == 1
    assert min(facts["means"].values()) < 1
    (expected,) = Bm25Retriever(k1=facts["k1"], b=facts["b"]).index(PASSAGES).search(["apple"], 6)
    assert retriever.search(["apple"], 6) == [expected]


def test_the_means_are_those_of_separate_indexes(tmp_path):
    wanted, k1, b = ["long1", "short2"], (0.9, 2.0), (0.2, 0.8)
    facts, _ = built(tmp_path, wanted, k1, b, measure="nDCG@10")
    judged = list(Lengths(wanted).judgements("dev"))
    for name, mean in facts["means"].items():
        values = [float(word) for word in name.replace(",", "").split() if word[0].isdigit()]
        alone = Bm25Retriever(k1=values[0], b=values[1]).index(PASSAGES).search(["apple"], 10)
        assert evaluate([(name, alone[0].pairs()) for name in "qr"], judged, ["nDCG@10"]).mean("nDCG@10") == mean


def test_the_first_of_equal_values_is_taken(tmp_path):
    facts, _ = built(tmp_path, [f"short{n}" for n in range(3)], (2.0, 1.2), (0.9, 1.0))
    assert (facts["k1"], facts["b"], {*facts["means"].values()}) == (2.0, 0.9, {1.0})


def test_one_value_of_each_needs_no_queries(tmp_path):
    facts, retriever = built(tmp_path, ["long0"], (0.9,), (0.4,), measure=None)
    assert facts == {"passages": 6, "k1": 0.9, "b": 0.4, "split_queries": "unknown"}
    assert retriever.search(["apple"], 6) == Bm25Retriever(k1=0.9, b=0.4).index(PASSAGES).search(["apple"], 6)


def test_variants_of_nothing_are_refused():
    with pytest.raises(DrkitError, match=r"BM25 .*words"):
        next(Bm25Retriever.variants([], [(1.2, 0.75)]))
