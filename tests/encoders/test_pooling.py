"""Every pooling, at any depth: as sentence-transformers computes it, whatever the padding, trained, saved and read."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from attrs import evolve

from drkit.encoders import MaskedLmEncoder
from drkit.encoders.pooling import POOLINGS, pool
from drkit.encoders.token_weights import (
    TOKEN_WEIGHTS_FILE,
    TokenWeights,
    read_token_weights,
    save_token_weights,
    weights_from_idf,
)
from drkit.errors import DrkitError
from drkit.recipe.start import declared_settings_of
from drkit.search import DualEncoder, TextEncoder
from drkit.search.sentence_encoder import SentenceTransformerEncoder
from tests.search.made import export_made, export_two, reader_of
from tests.search.toys import TEXTS, VOCABULARY, masked_lm, tokenizer

LENGTHS = {"query_length": 48, "passage_length": 48}
SAVED_AS = {"cls": "cls", "mean": "mean", "weighted": "mean", "max": "max", "last": "lasttoken"}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def weights(seed=0):
    return TokenWeights(torch.rand(len(VOCABULARY), generator=torch.Generator().manual_seed(seed)) + 0.1)


def text_encoder(pooling, **how):
    token_weights = weights() if POOLINGS[pooling].weighted else None
    return reader_of(masked_lm().base_model, tokenizer(), pooling, token_weights=token_weights, **LENGTHS, **how)


def export(folder, pooling, similarity="cosine"):
    encoder = text_encoder(pooling, similarity=similarity)
    how = {"pooling": pooling, "similarity": similarity, "token_weights": encoder.token_weights, **LENGTHS}
    return encoder, export_made(encoder.model, encoder.tokenizer, folder, **how)


def test_every_pooling_is_tested_here():
    assert {name: pooling.saved_as for name, pooling in POOLINGS.items()} == SAVED_AS


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_an_exported_encoder_gives_the_same_vectors_in_sentence_transformers(tmp_path, pooling, similarity):
    from sentence_transformers import SentenceTransformer

    encoder, folder = export(tmp_path / "e", pooling, similarity)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    loaded = TextEncoder.load(folder)
    assert (loaded.card.pooling, loaded.card.similarity) == (pooling, similarity)
    assert loaded.identity() == encoder.identity()
    vectors = encoder.encode_passages(TEXTS)
    np.testing.assert_array_equal(loaded.encode_passages(TEXTS), vectors)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(theirs.encode(TEXTS) / length, vectors / length, rtol=0, atol=1e-6)
    assert SentenceTransformerEncoder(theirs).identity()["weights"] == encoder.identity()["weights"]
    theirs.save(str(tmp_path / "again"))
    np.testing.assert_array_equal(TextEncoder.load(tmp_path / "again").encode_passages(TEXTS), vectors)
    assert declared_settings_of(folder).settings["pooling"] == pooling


@pytest.mark.parametrize("pooling", SAVED_AS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_pooling_is_that_of_sentence_transformers_on_either_side_of_the_padding(pooling, side):
    from sentence_transformers.sentence_transformer.modules import Pooling

    if (pooling, side) == ("cls", "left"):
        pytest.skip("drkit pads on the right, and takes the first position for [CLS]")
    draw = torch.Generator().manual_seed(1)
    hidden, lengths = torch.randn(4, 7, 5, generator=draw), torch.tensor([7, 3, 1, 5])
    attention = torch.arange(7) < lengths[:, None]
    attention = attention if side == "right" else attention.flip(1)
    token_weights = torch.rand(4, 7, generator=draw) * attention if pooling == "weighted" else attention
    features = {"token_embeddings": hidden, "attention_mask": attention.long()}
    if pooling == "weighted":
        features = {
            **features,
            "token_embeddings": hidden * token_weights[..., None],
            "token_weights_sum": token_weights.sum(1),
        }
    theirs = Pooling(5, SAVED_AS[pooling])(features)["sentence_embedding"]
    torch.testing.assert_close(pool(hidden, token_weights, pooling), theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_do_not_depend_on_the_padding(pooling):
    encoder = MaskedLmEncoder(masked_lm(), pooling=pooling).eval()
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 3, 0, 0]])
    wide = torch.nn.functional.pad(ids, (0, 6))
    narrow, padded = (encoder(x, x != 0)["bottleneck"] for x in (ids, wide))
    torch.testing.assert_close(narrow, padded, atol=1e-5, rtol=1e-5)
    alone = encoder(ids[1:, :3], ids[1:, :3] != 0)["bottleneck"]
    torch.testing.assert_close(padded[1:], alone, atol=1e-5, rtol=1e-5)


def test_weighted_equals_the_sum_written_out_and_its_gradient_reaches_the_weights():
    encoder = MaskedLmEncoder(masked_lm(), pooling="weighted").eval()
    chosen = torch.rand(len(VOCABULARY), generator=torch.Generator().manual_seed(2))
    encoder.set_token_weights(chosen)
    ids = torch.tensor([[2, 5, 6, 5, 3], [2, 8, 3, 0, 0]])
    out = encoder(ids, ids != 0)
    for row, vector in enumerate(out["bottleneck"]):
        real = [(chosen[i], h) for i, h in zip(ids[row], out["hidden"][row], strict=True) if i]
        expected = sum(w * h for w, h in real) / sum(w for w, _ in real)
        torch.testing.assert_close(vector, expected)
    out["bottleneck"].pow(2).sum().backward()
    found = encoder.token_weights.weight.grad
    assert set(found.nonzero().flatten().tolist()) == {2, 3, 5, 6, 8}
    assert encoder.backbone.embeddings.word_embeddings.weight.grad.abs().sum() > 0


def test_equal_weights_are_the_mean_and_negative_parameters_are_no_negative_weights():
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    one, mean = (MaskedLmEncoder(masked_lm(), pooling=name).eval() for name in ("weighted", "mean"))
    torch.testing.assert_close(one(ids, ids != 0)["bottleneck"], mean(ids, ids != 0)["bottleneck"])
    one.set_token_weights(-torch.ones(len(VOCABULARY)))
    torch.testing.assert_close(one(ids, ids != 0)["bottleneck"], mean(ids, ids != 0)["bottleneck"])


def test_token_weights_are_saved_and_read_with_a_checkpoint_and_an_exported_folder(tmp_path):
    assert read_token_weights(tmp_path) is None
    save_token_weights(weights(), tmp_path)
    torch.testing.assert_close(read_token_weights(tmp_path), weights().values(), rtol=0, atol=0)
    masked_lm().save_pretrained(tmp_path)
    encoder = MaskedLmEncoder.from_pretrained(str(tmp_path), pooling="weighted")
    torch.testing.assert_close(encoder.token_weights.weight.data, weights().weight.data, rtol=0, atol=0)
    tokenizer().save_pretrained(tmp_path)
    bare = TextEncoder.bare(tmp_path, pooling="weighted")
    np.testing.assert_allclose(bare.encode_passages(TEXTS[:1]), text_encoder("weighted").encode_passages(TEXTS[:1]))
    _, folder = export(tmp_path / "e", "weighted")
    with pytest.warns(UserWarning, match="no language-model head"):
        again = MaskedLmEncoder.from_pretrained(str(folder), pooling="weighted")
    torch.testing.assert_close(again.token_weights.weight.data, weights().weight.data, rtol=0, atol=0)


def test_separate_encoders_have_their_own_token_weights(tmp_path):
    sides = [(masked_lm(seed), tokenizer()) for seed in (1, 2)]
    both = (weights(1), weights(2))
    export_two(*sides, tmp_path / "e", token_weights=both, pooling="weighted", similarity="dot", **LENGTHS)
    dual = DualEncoder.load(tmp_path / "e")
    for side, expected in zip((dual.queries, dual.passages), both, strict=True):
        torch.testing.assert_close(side.token_weights.values(), expected.values(), rtol=0, atol=0)
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(theirs.encode_query(TEXTS), dual.encode_queries(TEXTS), atol=1e-5)
    np.testing.assert_allclose(theirs.encode_document(TEXTS), dual.encode_passages(TEXTS), atol=1e-5)


def test_an_index_knows_the_token_weights():
    one = text_encoder("weighted")
    assert one.identity() == text_encoder("weighted").identity()
    assert one.identity()["weights"] != evolve(one, token_weights=weights(5)).identity()["weights"]


def test_weights_from_idf_leave_special_tokens_and_frequent_words_almost_nothing():
    start = weights_from_idf(torch.tensor([9.0, 9.0, 0.0, 4.5, 6.0, 3.0]), special_ids=[0, 1])
    torch.testing.assert_close(start, torch.tensor([0.01, 0.01, 0.01, 0.75, 1.0, 0.5]))


def test_token_weights_that_are_missing_or_of_no_use_are_refused(tmp_path):
    model, words = masked_lm(), tokenizer()
    with pytest.raises(DrkitError, match=r"'weighted' .*`token_weights`"):
        reader_of(model.base_model, words, "weighted")
    with pytest.raises(DrkitError, match=r"'mean' .*'weighted'.*`token_weights`"):
        reader_of(model.base_model, words, "mean", token_weights=weights())
    with pytest.raises(DrkitError, match=r"'weighted' .*`token_weights`"):
        export_made(model, words, tmp_path / "e", pooling="weighted", similarity="dot", **LENGTHS)
    with pytest.raises(DrkitError, match=r"'mean' .*'weighted'.*`token_weights`"):
        MaskedLmEncoder(model, pooling="mean").set_token_weights(torch.ones(3))
    with pytest.raises(DrkitError, match="token weights, got"):
        MaskedLmEncoder(model, pooling="weighted").set_token_weights(torch.ones(len(VOCABULARY) + 1))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("2_Pooling/config.json", {"pooling_mode": "max"}, r"unsupported pooling \(max with WordWeights\)"),
        ("1_WordWeights/config.json", {"vocab": ["a"]}, "word weights"),
        ("1_WordWeights/config.json", {"vocab": ["a"], "word_weights": {"a": "heavy"}}, "word weights"),
    ],
)
def test_folders_with_invalid_token_weights_are_refused(tmp_path, file, content, message):
    _, folder = export(tmp_path / "e", "weighted")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(DrkitError, match=message):
        TextEncoder.load(folder)
    assert not (folder / TOKEN_WEIGHTS_FILE).exists()
