"""drkit's side of each line of the page on other tools; the page has no other lines."""

from __future__ import annotations

import importlib.util
import math
import re
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertTokenizerFast

from drkit.core.draws import Draws
from drkit.core.types import EmbeddedPairs, Judgement, Mined, MiningRequest
from drkit.encoders import context_from, token_batch
from drkit.errors import DrkitError
from drkit.evaluate import evaluate, holm, paired_t_test
from drkit.losses import GistConfig, GistLoss
from drkit.maskers import UniformConfig, UniformMasker
from drkit.miners import MarginConfig, MarginFilter, RanksConfig, RanksFilter, mine
from drkit.search.bm25 import Bm25Retriever
from drkit.search.flat import FlatIndex
from drkit.search.fusion import align, convex
from drkit.search.index import FaissIndex
from drkit.search.rankings import Hits
from drkit.search.retriever import Retriever
from drkit.search.sentence_encoder import SentenceTransformerEncoder
from drkit.testing.toys import ToyCorpus
from drkit_sentence_transformers import HardNegatives
from tests.parts.toys import toy_encoder

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "beside-other-tools.md"
TESTED: set[str] = set()


def line(*cases):
    """Say which lines of the page a test is for."""
    TESTED.update(cases)
    return lambda test: test


def judge(*relevant, query="q", **grades):
    return [Judgement(query, doc, grade) for doc, grade in {**dict.fromkeys(relevant, 1), **grades}.items()]


def value(measure, hits, judged):
    return evaluate([("q", list(hits))], judged, [measure]).per_query[measure]["q"]


def test_each_line_of_the_page_has_a_test_here():
    rows = re.findall(r"^\| (.+?) \| .+? \| .+? \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows[0] == "case"
    assert len(rows) == len(set(rows))
    assert set(rows[1:]) == TESTED


@line("order of equal scores", "measures that break ties differently")
def test_equal_scores_are_in_one_order_for_every_measure():
    measures = ["RR", "RR@10", "P@1", "Success@1", "nDCG@1", "AP", "AP@10", "Judged@1", "R@1", "RR(rel=1)@10"]
    for order in permutations("abc"):
        hits = [(doc, 1.0) for doc in order]
        found = {doc: evaluate([("q", hits)], judge(doc), measures).means() for doc in "abc"}
        assert set(found["c"].values()) == {1.0}
        assert (found["b"]["RR"], found["b"]["RR@10"], found["b"]["Judged@1"]) == (0.5, 0.5, 0.0)
        assert found["a"]["RR@10"] == pytest.approx(1 / 3)
    # equal as float32
    assert value("RR@10", [("a", 1.00000001), ("b", 1.0)], judge("b")) == 1


@line("first hit and number of hits")
@pytest.mark.parametrize("count", [8, 100, 343])
def test_the_first_hits_are_the_same_at_every_depth(count):
    ids = [f"d{i}" for i in range(count)]
    flat = FlatIndex.build(np.ones((count, 4), dtype=np.float32), ids)
    words = Bm25Retriever().index({**dict.fromkeys(ids, "fish"), "other": "lemon"})
    for depth in (1, 2, 5, 50, count - 1, count):
        wanted = tuple(ids[:depth])
        assert flat.search(np.ones((1, 4), dtype=np.float32), depth)[0].doc_ids == wanted
        assert words.search(["fish"], depth)[0].doc_ids == wanted


@line("exact search in less than float32")
def test_exact_search_is_in_float32():
    random = np.random.default_rng(0)
    close = random.normal(size=64) + 1e-4 * random.normal(size=(500, 64))
    vectors, queries = close.astype(np.float32), random.normal(size=(50, 64)).astype(np.float32)
    wanted = (vectors.astype(np.float64) @ queries.T.astype(np.float64)).argmax(0)
    found = FlatIndex.build(vectors, [str(i) for i in range(500)]).search(queries, 1)
    assert [int(hits.doc_ids[0]) for hits in found] == wanted.tolist()


@line("fewer hits than requested")
@pytest.mark.parametrize("kind", ["flat", "hnsw", "int8"])
def test_fewer_hits_are_fewer(kind):
    vectors, ids = np.eye(3, dtype=np.float32), ["0", "1", "2"]
    index = FlatIndex.build(vectors, ids) if kind == "flat" else FaissIndex.build(vectors, ids, kind=kind)
    for hits in index.search(vectors[1:], 5):
        assert sorted(hits.doc_ids) == ids
        assert np.isfinite(hits.scores).all()


@line("average precision at k")
def test_average_precision_at_k_divides_by_all_relevant_documents():
    hits = [(f"d{i}", -i) for i in range(1, 10)]
    judged = judge("d1", "d5", "d8", "d9")
    assert [value(f"AP@{k}", hits, judged) for k in (1, 5)] == [1 / 4, (1 + 2 / 5) / 4]
    assert value("AP@9", hits, judged) == value("AP", hits, judged)


@line("grades in nDCG")
def test_the_gain_of_ndcg_is_the_grade():
    hits = [("a", 2.0), ("b", 1.0)]
    assert value("nDCG@10", hits, judge(a=1, b=3)) == pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)))


@line("negative grades")
@pytest.mark.parametrize("measure", ["nDCG@10", "Bpref", "RR", "P@1", "AP"])
def test_a_negative_grade_is_as_no_judgement(measure):
    hits, judged = [("a", 3.0), ("b", 2.0), ("c", 1.0)], judge(b=2, c=0)
    assert value(measure, hits, [*judged, Judgement("q", "a", -1)]) == value(measure, hits, judged)


@line("grades in rank-biased precision")
@pytest.mark.skipif(importlib.util.find_spec("cwl_eval") is not None, reason="the engine is installed")
def test_rank_biased_precision_is_refused_without_its_engine():
    with pytest.raises(DrkitError, match="RBP"):
        value("RBP(p=0.5)", [("a", 1.0)], judge(a=3))


@line("bpref, all judged documents relevant")
def test_bpref_without_an_irrelevant_document_is_a_number():
    assert value("Bpref", [("a", 2.0), ("b", 1.0)], judge("a")) == 1
    assert value("Bpref", [("a", 2.0), ("b", 1.0)], judge("a", "lost")) == 0.5


@line("queries that the run lacks", "queries without a relevant document")
@pytest.mark.parametrize("measure", ["RR@10", "nDCG@10", "AP", "Bpref", "Judged@10", "Success@1", "R_cap@10"])
def test_every_judged_query_counts(measure):
    judged = [*judge("a"), *judge("a", query="lacking"), *judge(query="none", a=0)]
    run = [("q", [("a", 1.0)]), ("none", [("z", 1.0)]), ("unjudged", [("a", 1.0)])]
    assert evaluate(run, judged, [measure]).per_query[measure] == {"q": 1, "lacking": 0, "none": 0}


@line("Holm's correction with a p that is NaN")
def test_a_difference_that_was_not_tested_is_no_test():
    corrected = holm([0.02, 0.03, math.nan, 0.04])
    assert math.isnan(corrected.pop(2))
    assert corrected == holm([0.02, 0.03, 0.04]) == pytest.approx([0.06, 0.06, 0.06])


@line("smallest p of a permutation test")
def test_p_is_above_0_however_large_the_difference():
    values = {str(i): 1 - i / 1000 for i in range(50)}
    found = paired_t_test(values, dict.fromkeys(values, 0.0))
    assert 0 < found.p < 1e-50


class Given:
    """A source of six candidates with falling scores; the positive scores .8."""

    def index(self, corpus):
        self.corpus = corpus

    def mine(self, requests, depth):
        scores = (0.99, 0.95, 0.7, 0.6, 0.5, 0.4)
        for request in requests:
            ids = tuple(f"d{i}" for i in range(6))
            yield Mined(request.query_id, ids, scores, positive_scores={"d9": 0.8})


@line("negatives from rank r on")
@pytest.mark.parametrize(
    ("order", "kept"), [("margin, ranks", ("d4", "d5")), ("ranks, margin", ("d2", "d3", "d4", "d5"))]
)
def test_ranks_are_those_that_the_filters_before_it_left(order, kept):
    filters = {"ranks": RanksFilter(RanksConfig(keep="3-6")), "margin": MarginFilter(MarginConfig(absolute=0.05))}
    requests = [MiningRequest("q", "topic", positives=frozenset({"d9"}))]
    (found,) = mine(ToyCorpus(), requests, [Given(), *(filters[name] for name in order.split(", "))])
    assert found.doc_ids == kept


WORDS = {"q": (1, 0), "p": (0.8, 0.6), "n0": (0.99, 0.141), "n1": (0.7, 0.714), "long": (3, 9.5)}


@pytest.fixture
def dot_model():
    """A SentenceTransformer of one word's vector each, which compares by dot product."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="q"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.array(list(WORDS.values()), dtype=np.float32)
    module = StaticEmbedding(tokenizer, embedding_weights=weights)
    return SentenceTransformer(modules=[module], similarity_fn_name="dot", device="cpu")


@line("negatives of a dot-product model")
def test_a_dot_product_model_is_mined_by_dot_products(dot_model, tmp_path):
    data = HardNegatives(dot_model).tuples([("q", "p")], 3, corpus=["n0", "n1", "long"])
    assert [data[0][f"negative_{n}"] for n in (1, 2, 3)] == ["long", "n0", "n1"]
    encoder = SentenceTransformerEncoder(dot_model)
    retriever = Retriever.build(encoder, [("n0", "n0"), ("long", "long")], tmp_path / "vectors")
    assert retriever.search(["q"], 2) == [Hits(("long", "n0"), (3.0, pytest.approx(0.99)))]


@line("a text as its own negative")
def test_a_text_is_no_negative_of_itself_whatever_a_guide_says():
    same, columns = torch.eye(3), {"guide-queries": torch.eye(3), "guide-passages": torch.eye(3)}
    pairs = EmbeddedPairs(queries=same, passages=same, positives=torch.arange(3), columns=columns)
    assert GistLoss(GistConfig(temperature=0.01))(pairs=pairs).loss < 1e-6


@line("a query's own text among the passages")
@pytest.mark.parametrize("source", ["bm25", "model"])
def test_a_querys_own_text_is_no_negative(dot_model, source):
    hard = HardNegatives(dot_model if source == "model" else "bm25")
    (row,) = hard.tuples([("n0 q", "p n0")], 1, corpus=["n0 q", "n0 long"])
    assert row["negative_1"] == "n0 long"
    assert hard.counts["dropped"]["query-itself"] == 1


@line("whole-word masking")
def test_words_are_those_of_the_tokenizer_and_are_hidden_in_the_shares_of_bert():
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"-(",
        "state",
        "of",
        "the",
        "art",
        "see",
        "re",
        "##move",
    ]
    tokenizer = BertTokenizerFast(vocab={word: n for n, word in enumerate(vocabulary)})
    tokens = token_batch(tokenizer(["state-of-the-art (see remove"] * 400, padding=True))
    assert tokens.words[0].tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, -1]
    encoder = toy_encoder(tokenizer)
    masker = UniformMasker(UniformConfig(ratio=0.5), context_from(encoder, tokenizer))
    view = masker(tokens, Draws(1, 0, tokens.keys.numpy()))
    hidden = view.labels != -100
    assert (hidden[:, 10] == hidden[:, 11]).all()
    assert hidden[:, 1:8].float().mean(0).min() > 0
    assert not hidden[:, 1:8].all(1).any()
    masked, kept = view.ids[hidden] == tokenizer.mask_token_id, view.ids[hidden] == view.labels[hidden]
    assert float(masked.float().mean()) == pytest.approx(0.8, abs=0.04)
    assert 0.08 < float(kept.float().mean()) < 0.2  # some of the random tokens are the same


TEXTS = {
    "d1": "salt pepper",
    "d2": "salt oil",
    "d3": "salt bread",
    "d4": "rice salt",
    "d5": "salt pepper pepper pepper",
}


@line("variants of BM25")
def test_bm25_is_lucenes():
    found = Bm25Retriever(k1=1.5, b=0.75).index(TEXTS)
    once, thrice = found.score(["pepper"], [["d1", "d5"]])[0]
    idf = math.log(1 + (5 - 2 + 0.5) / (2 + 0.5))
    assert once == pytest.approx(idf / (1 + 1.5 * (0.25 + 0.75 * 2 / 2.4)), rel=1e-5)
    assert once < thrice < 1.5 * once
    assert all(score > 0 for score in found.score(["salt"], [list(TEXTS)])[0])


@line("BM25 of passages without a word of the query")
def test_a_passage_without_a_word_of_the_query_is_no_hit():
    found = Bm25Retriever().index(TEXTS)
    assert sorted(found.search(["pepper"], 5)[0].doc_ids) == ["d1", "d5"]
    assert found.search(["wine"], 5) == [Hits((), ())]


@line("a ranking with one hit, or equal scores, in a fusion")
@pytest.mark.parametrize("words", [[("rare", 9.0)], [("rare", 9.0), ("c", 9.0)]])
def test_a_ranking_of_one_score_counts_in_a_fusion(words):
    vectors = [("a", 0.83), ("b", 0.81), ("c", 0.78), ("rare", 0.75)]
    ((_, hits),) = convex(align([("q", words)], [("q", vectors)]), 0.5)
    scores = dict(hits)
    assert scores["rare"] == 0.5
    assert scores["b"] == pytest.approx(0.375)
    assert [doc for doc, _ in hits][:1] == ["rare"] if len(words) == 1 else scores["c"] > scores["a"]
