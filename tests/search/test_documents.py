"""Long documents are ranked by their best passages, as by a naive maximum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from drkit.core.types import Query
from drkit.encoders import EncoderCard
from drkit.errors import DrkitError
from drkit.search import DualEncoder, Retriever, TextEncoder, build_index, encode_corpus, open_index, read_run
from drkit.search.blocks import rank_to_run
from drkit.search.encode import cut_documents
from tests.search.made import export_made, reader_of
from tests.search.toys import WORDS, masked_lm, tokenizer

LENGTH, MOST = 12, 3
ROOM = LENGTH - 3  # [CLS], [SEP], and the prompt


def documents(count=40):
    draws = np.random.default_rng(0)
    texts = [" ".join(draws.choice([*WORDS, "abba", "cafe"], size)) for size in draws.integers(1, 60, count)]
    return [(f"d{i}#" if i % 2 else f"d{i}", text) for i, text in enumerate([*texts, ""])]


def encoder(seed=0, **settings):
    how = {"passage_length": LENGTH, "query_length": 16, "passage_prompt": "from ", "passages_per_document": MOST}
    return reader_of(masked_lm(seed).base_model, tokenizer(), **{**how, **settings})


def naive(made_by, queries):
    """Every document's best product with each query [Q,N], over the passages of its first tokens."""
    passages = list(cut_documents(made_by, documents()))
    scores = made_by.encode_queries(queries) @ made_by.encode_passages([text for _, text in passages]).T
    owners = np.array([name.rpartition("#")[0] for name, _ in passages])
    return np.stack([scores[:, owners == doc_id].max(1) for doc_id, _ in documents()], 1)


@pytest.mark.parametrize("made_by", [encoder(), DualEncoder(encoder(), encoder(seed=1))], ids=["shared", "dual"])
def test_a_document_is_ranked_by_its_best_passage(made_by, tmp_path):
    queries = ["remove suffix", "abba", "each number of cafe"]
    vectors = encode_corpus(made_by, documents(), tmp_path / "vectors")
    build_index(vectors, tmp_path / "index")
    retriever, expected = Retriever(made_by, open_index(tmp_path / "index")), naive(made_by, queries)
    ids = [doc_id for doc_id, _ in documents()]
    assert len(retriever) > len(ids)
    for depth in (1, 5, len(ids)):
        for hits, scores in zip(retriever.search(queries, depth), expected, strict=True):
            assert hits.doc_ids == tuple(ids[i] for i in np.argsort(-scores, kind="stable")[:depth])
            np.testing.assert_allclose(hits.scores, np.sort(scores)[::-1][:depth], atol=1e-6)
    scored = retriever.score(queries, [[*ids, "unknown"]] * len(queries))
    np.testing.assert_allclose([row[:-1] for row in scored], expected, atol=1e-6)
    assert all(math.isnan(row[-1]) for row in scored)
    rank_to_run(retriever, [Query(f"q{i}", text) for i, text in enumerate(queries)], tmp_path / "found.trec", depth=5)
    found = [[doc_id for doc_id, _ in hits] for _, hits in read_run(tmp_path / "found.trec")]
    assert found == [list(hits.doc_ids) for hits in retriever.search(queries, 5)]


def test_a_document_is_cut_between_words_into_equal_parts_that_the_encoder_reads_whole():
    made_by = encoder()
    for doc_id, text in documents():
        words, passages = tokenizer()(text, add_special_tokens=False)["input_ids"], []
        for n, (name, passage) in enumerate(cut_documents(made_by, [(doc_id, text)])):
            assert name == f"{doc_id}#{n}"
            assert passage in text
            passages.append(tokenizer()(passage, add_special_tokens=False)["input_ids"])
            assert len(made_by.tokenizer(made_by.card.passage_prompt + passage)["input_ids"]) <= LENGTH
        joined = [token for passage in passages for token in passage]
        assert len(passages) <= MOST
        assert joined == words[: len(joined)]
        assert len(joined) == len(words) or len(joined) > (MOST - 1) * ROOM // 2
        if len(words) <= ROOM:
            assert passages == [words]
        elif len(words) <= (MOST - 1) * ROOM:
            assert joined == words
            assert max(map(len, passages)) - min(map(len, passages)) <= ROOM // 2


def test_without_the_setting_nothing_changes(tmp_path):
    plain, cut = encoder(passages_per_document=None), encoder()
    assert cut.identity() == {**plain.identity(), "passages_per_document": MOST}
    whole = encode_corpus(plain, documents(), tmp_path / "whole")
    assert list(whole.doc_ids.take(np.arange(3))) == ["d0", "d1#", "d2"]
    build_index(whole, tmp_path / "index")
    hits = Retriever(cut, open_index(tmp_path / "index")).search(["suffix"], 50)[0]
    assert sorted(hits.doc_ids) == sorted(doc_id for doc_id, _ in documents())


def test_an_exported_encoder_cuts_documents_too(tmp_path):
    made_by = encoder(pooling="mean")
    export_made(
        made_by.model,
        made_by.tokenizer,
        tmp_path / "e",
        pooling="mean",
        similarity="cosine",
        query_length=16,
        passage_length=LENGTH,
        passage_prompt="from ",
        passages_per_document=MOST,
    )
    assert EncoderCard.read(tmp_path / "e").passages_per_document == MOST
    assert TextEncoder.load(tmp_path / "e").identity()["passages_per_document"] == MOST


def test_token_ids_cannot_be_cut(tmp_path):
    with pytest.raises(DrkitError, match=r"'d'.*token ids.*texts$"):
        encode_corpus(encoder(), [("d", np.array([2, 5, 3], np.int32))], tmp_path / "v")
