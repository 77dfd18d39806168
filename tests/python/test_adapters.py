"""Models of sentence-transformers as encoders and scorers of drkit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from drkit.core.types import Passage
from drkit.errors import DrkitError
from drkit.search import (
    CrossEncoderScorer,
    FlatIndex,
    Reranker,
    Retriever,
    SentenceTransformerEncoder,
    TextEncoder,
    encode_corpus,
    rerank,
)
from drkit.search.reranking import as_scorer
from drkit.search.sentence_encoder import as_encoder
from tests.search.toys import TEXTS


def test_its_vectors_and_its_index_are_the_text_encoders(model, folder, tmp_path):
    ours, theirs = TextEncoder.load(folder), SentenceTransformerEncoder(model)
    assert theirs.dimension == ours.dimension == 32
    np.testing.assert_allclose(theirs.encode_queries(TEXTS), ours.encode_queries(TEXTS), atol=1e-6)
    np.testing.assert_allclose(theirs.encode_passages(TEXTS), ours.encode_passages(TEXTS), atol=1e-6)
    assert theirs.encode_passages([]).shape == (0, 32)
    vectors = encode_corpus(theirs, enumerate_ids(TEXTS), tmp_path / "vectors")
    index = FlatIndex.build(vectors.shards, vectors.doc_ids, encoder=vectors.encoder)
    found = [Retriever(encoder, index).search(["remove a suffix"], 3)[0] for encoder in (ours, theirs)]
    assert found[0].doc_ids == found[1].doc_ids
    with torch.no_grad():
        next(model.parameters()).add_(0.1)
    with pytest.raises(DrkitError, match="another encoder"):
        Retriever(theirs, index)
    with pytest.raises(DrkitError, match="weights"):
        encode_corpus(theirs, enumerate_ids(TEXTS), tmp_path / "vectors")


def test_prompts_and_other_modules_are_its_own(model, folder, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense

    model.prompts = {"query": "string ", "document": "file "}
    encoder = SentenceTransformerEncoder(model)
    plain = TextEncoder.load(folder)
    np.testing.assert_allclose(encoder.encode_queries(["a"]), plain.encode_queries(["string a"]), atol=1e-6)
    np.testing.assert_allclose(encoder.encode_passages(["a"]), plain.encode_passages(["file a"]), atol=1e-6)
    longer = SentenceTransformer(modules=[*model, Dense(32, 8)], device="cpu", similarity_fn_name="dot")
    dense = SentenceTransformerEncoder(longer)
    assert dense.encode_queries(["a", "b"]).shape == (2, dense.dimension) == (2, 8)
    assert dense.identity()["weights"] != encoder.identity()["weights"]
    index = FlatIndex.build(dense.encode_passages(["a", "b"]), ["a", "b"], encoder=dense.identity())
    assert len(Retriever(dense, index).search(["a"], 2)[0].doc_ids) == 2
    longer.similarity_fn_name = "euclidean"
    with pytest.raises(DrkitError, match="euclidean"):
        SentenceTransformerEncoder(longer)


def test_its_mode_is_left_and_token_ids_are_refused(model, tmp_path):
    encoder = SentenceTransformerEncoder(model.train())
    encoder.encode_queries(["a"])
    assert all(module.training for module in model.modules())
    with pytest.raises(DrkitError, match=r"SentenceTransformerEncoder .*token ids"):
        encode_corpus(encoder, [("a", np.array([1, 2], dtype=np.int32))], tmp_path / "v")


def test_a_cross_encoder_gives_raw_scores(judge, monkeypatch):
    from sentence_transformers import CrossEncoder

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    theirs = CrossEncoder(str(judge), device="cpu", activation_fn=torch.nn.Sigmoid())
    pairs = [("remove", text) for text in TEXTS]
    scores = CrossEncoderScorer(theirs).score(pairs)
    np.testing.assert_allclose(scores, Reranker.load(judge).score(pairs), atol=1e-5)
    assert scores.dtype == np.float32
    assert CrossEncoderScorer(theirs).score([]).shape == (0,)
    run = [("q", [("0", 2.0), ("2", 1.0)])]
    texts = dict(enumerate_ids(TEXTS))
    ((_, hits),) = rerank(run, as_scorer(theirs), queries={"q": "remove"}, corpus=texts)
    assert dict(hits) == pytest.approx({"0": scores[0], "2": scores[2]}, abs=1e-5)


def test_what_is_neither_is_told(folder, judge):
    assert isinstance(as_encoder(folder), TextEncoder)
    assert isinstance(as_scorer(judge), Reranker)
    with pytest.raises(DrkitError, match=r"Passage .*encode_queries, encode_passages"):
        as_encoder(Passage("a", "b"))
    with pytest.raises(DrkitError, match=r"Passage .*score\(pairs\)"):
        as_scorer(Passage("a", "b"))


def enumerate_ids(texts):
    return [(str(index), text) for index, text in enumerate(texts)]
