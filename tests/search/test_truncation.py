"""An encoder whose vectors are cut short: the same vectors in drkit and sentence-transformers, from any kind."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.errors import DrkitError
from drkit.recipe.start import starting_point
from drkit.search import DualEncoder, TextEncoder, Vectors, encode_corpus
from drkit.search.dual_encoder import read_encoder
from tests.search.made import export_made, export_two, reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer

HOW = {"query_length": 48, "passage_length": 48}
KEPT = 6


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def static_lm(pooling):
    sizes = BertSizes(hidden=16, layers=0, heads=2, intermediate=24, max_positions=64, dropout=0.0)
    encoder = MaskedLmEncoder.from_scratch(sizes, tokenizer(), pooling=pooling, seed=1).eval()
    if pooling == "weighted":
        encoder.set_token_weights(torch.rand(len(tokenizer()), generator=torch.Generator().manual_seed(1)) + 0.1)
    return encoder


def cut(vectors, unit):
    kept = vectors[:, :KEPT]
    return kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12) if unit else kept


@pytest.mark.parametrize(
    ("pooling", "similarity", "normalize"), [("mean", "cosine", False), ("cls", "dot", False), ("last", "dot", True)]
)
def test_sentence_transformers_gives_the_same_short_vectors(tmp_path, pooling, similarity, normalize):
    from sentence_transformers import SentenceTransformer

    how = {**HOW, "pooling": pooling, "similarity": similarity, "normalize": normalize}
    whole = reader_of(masked_lm().base_model, tokenizer(), **{**how, "similarity": "dot", "normalize": False})
    export_made(masked_lm(), tokenizer(), tmp_path / "e", **how, truncate_dim=KEPT)
    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
    loaded = TextEncoder.load(tmp_path / "e")
    expected = cut(whole.encode_passages(TEXTS), normalize or similarity == "cosine")
    assert loaded.dimension == theirs.get_embedding_dimension() == KEPT
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), expected, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(theirs.encode(TEXTS), loaded.encode_passages(TEXTS), atol=1e-6, rtol=1e-6)
    in_memory = reader_of(masked_lm().base_model, tokenizer(), **how, truncate_dim=KEPT)
    assert in_memory.identity() == loaded.identity()


@pytest.mark.parametrize("pooling", ["mean", "weighted"])
def test_a_static_encoder_is_cut_in_its_table(tmp_path, pooling):
    from sentence_transformers import SentenceTransformer

    encoder = static_lm(pooling)
    how = {**HOW, "pooling": pooling, "similarity": "cosine", "token_weights": encoder.token_weights}
    whole = reader_of(encoder.backbone, tokenizer(), **how)
    export_made(encoder.model, tokenizer(), tmp_path / "e", **how, truncate_dim=KEPT)
    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
    loaded = TextEncoder.load(tmp_path / "e")
    expected = cut(whole.encode_passages(TEXTS), unit=True)
    assert loaded.dimension == theirs.get_embedding_dimension() == KEPT
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=1e-6)
    assert whole.evolve(truncate_dim=KEPT).identity() == loaded.identity()
    assert (tmp_path / "e" / "model.safetensors").stat().st_size < 4 * 8 * len(tokenizer()) + 200


def test_two_encoders_are_cut_alike(tmp_path):
    from sentence_transformers import SentenceTransformer

    how = {**HOW, "pooling": "mean", "similarity": "cosine", "truncate_dim": KEPT}
    sides = (masked_lm(seed=1), tokenizer()), (masked_lm(seed=2), tokenizer())
    export_two(*sides, tmp_path / "e", **how)
    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
    loaded = read_encoder(tmp_path / "e")
    assert isinstance(loaded, DualEncoder)
    assert loaded.dimension == KEPT
    np.testing.assert_allclose(loaded.encode_queries(TEXTS), theirs.encode_query(TEXTS), atol=1e-6)
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), theirs.encode_document(TEXTS), atol=1e-6)


def test_short_vectors_are_not_mixed_with_whole_ones(tmp_path):
    encoder = reader_of(masked_lm().base_model, tokenizer(), pooling="mean", **HOW)
    short = encoder.evolve(truncate_dim=KEPT)
    texts = [(str(number), text) for number, text in enumerate(TEXTS)]
    encode_corpus(short, texts, tmp_path / "v")
    assert Vectors.open(tmp_path / "v").dimension == KEPT
    with pytest.raises(DrkitError, match=r"truncate_dim.* differ"):
        encode_corpus(encoder, texts, tmp_path / "v")


def test_what_cannot_be_cut_or_read_is_refused(tmp_path):
    how = {**HOW, "pooling": "mean", "similarity": "cosine"}
    width = masked_lm().config.hidden_size
    with pytest.raises(DrkitError, match=rf"\b{width} numbers .*999;"):
        export_made(masked_lm(), tokenizer(), tmp_path / "e", **how, truncate_dim=999)
    with pytest.raises(DrkitError, match="truncate_dim"):
        export_made(masked_lm(), tokenizer(), tmp_path / "e", **how, truncate_dim=0)
    export_made(masked_lm(), tokenizer(), tmp_path / "e", **how, truncate_dim=KEPT)
    dense = next((tmp_path / "e").glob("*_Dense"))
    weights = load_file(dense / "model.safetensors")
    save_file({"linear.weight": weights["linear.weight"] * 2}, dense / "model.safetensors")
    with pytest.raises(DrkitError, match=r"_Dense: .*Dense"):
        TextEncoder.load(tmp_path / "e")
    (dense / "model.safetensors").unlink()
    with pytest.raises(DrkitError, match=r"_Dense/model\.safetensors"):
        TextEncoder.load(tmp_path / "e")


def test_the_command_exports_an_encoder_of_short_vectors(tmp_path):
    from click.testing import CliRunner

    from drkit_cli.main import cli

    export_made(masked_lm(), tokenizer(), tmp_path / "e", **HOW, pooling="mean", similarity="cosine")
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "e"), "--dimension", "6", "-o", str(tmp_path / "short")])
    assert done.exit_code == 0, done.output
    assert TextEncoder.load(tmp_path / "short").dimension == KEPT
    assert json.loads((tmp_path / "short" / "drkit.json").read_text())["truncate_dim"] == KEPT
    assert "| truncate_dim | 6 |" in (tmp_path / "short" / "README.md").read_text().replace("\\", "")
    done = CliRunner().invoke(cli, ["export", str(tmp_path / "e"), "--dimension", "999", "-o", str(tmp_path / "x")])
    assert isinstance(done.exception, DrkitError)
    assert not (tmp_path / "x").exists()


def test_no_run_starts_from_short_vectors(tmp_path):
    how = {**HOW, "pooling": "mean", "similarity": "cosine"}
    export_made(masked_lm(), tokenizer(), tmp_path / "e", **how, truncate_dim=KEPT)
    with pytest.raises(DrkitError, match=f"first {KEPT} numbers .* exported from"):
        starting_point(str(tmp_path / "e"))
    export_made(masked_lm(), tokenizer(), tmp_path / "whole", **how)
    assert starting_point(str(tmp_path / "whole")).encoder["pooling"] == "mean"
