"""Encoder folders of sentence-transformers in commands: searched, trained from, or refused; guesses are said."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from drkit.commands import export_checkpoint, open_encoder
from drkit.core.registry import installed
from drkit.core.spec import Choice
from drkit.encoders.pooling import LexicalConfig
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.start import declared_settings_of
from drkit.search import TextEncoder
from tests.search.folders import CASES, REFUSED, change, plain, sparse, splade, static, with_prompts, with_reading
from tests.search.toys import TEXTS, WORDS

PARTS = installed()


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_prompt_of_passages_comes_before_the_empty_one_of_documents(tmp_path, caplog):
    with_prompts(tmp_path / "e", {"query": "file ", "passage": "number "})
    saved = json.loads((tmp_path / "e" / "config_sentence_transformers.json").read_text())["prompts"]
    assert saved["document"] == "", "sentence-transformers adds it"
    with caplog.at_level(logging.WARNING, logger="drkit"):
        encoder = open_encoder(tmp_path / "e", device="cpu")
    assert encoder.card.passage_prompt == "number "
    assert "passage = 'number '" in caplog.text
    assert "--passage-prompt ''" in caplog.text
    caplog.clear()
    assert open_encoder(tmp_path / "e", passage_prompt="", device="cpu").card.passage_prompt == ""
    assert not caplog.text
    assert declared_settings_of(tmp_path / "e").settings["passage_prompt"] == "number "


@pytest.mark.parametrize("mode", ["mean", "weightedmean"])
def test_it_is_the_same_prompt_for_modules_that_sentence_transformers_computes(mode, tmp_path):
    plain(tmp_path / "e", mode=mode, prompts={"query": "file ", "passage": "number "})
    plain(tmp_path / "f", mode=mode)
    one, two = (open_encoder(tmp_path / name, device="cpu") for name in "ef")
    expected = two.encode_passages([f"number {text}" for text in TEXTS])
    np.testing.assert_allclose(one.encode_passages(TEXTS), expected, atol=1e-6)
    assert one.identity() != two.identity()


def test_prompts_of_other_names_are_named(tmp_path, caplog):
    with_prompts(tmp_path / "e", {"search_query": "file ", "clustering": "a "})
    with caplog.at_level(logging.WARNING, logger="drkit"):
        open_encoder(tmp_path / "e", device="cpu")
    assert "search_query = 'file '" in caplog.text


@pytest.mark.parametrize("mode", ["mean", "weightedmean"])
@pytest.mark.parametrize("side", ["query_prompt", "passage_prompt"])
def test_a_prompt_that_leaves_no_room_for_text_is_refused(mode, side, tmp_path, run_drkit, monkeypatch):
    plain(tmp_path / "e", mode=mode)
    with pytest.raises(DrkitError, match="leaves no room for text"):
        open_encoder(tmp_path / "e", device="cpu", **{side: "file " * 64})
    open_encoder(tmp_path / "e", device="cpu", **{side: "file " * 20})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text('{"text": "a file"}\n')
    option = f"--{side.replace('_', '-')}"
    code, _, err = run_drkit(
        *("encode", "--encoder", "e", "--collection", "jsonl:t.jsonl", "-o", "v", option, "file " * 64)
    )
    assert (code, "leaves no room for text" in err) == (2, True)
    assert not (tmp_path / "v").exists()


def test_a_static_encoder_reads_all_words(tmp_path):
    static(tmp_path / "e", similarity_fn_name="dot")
    encoder = TextEncoder.load(tmp_path / "e")
    texts = [" ".join(WORDS[(at * at + length) % len(WORDS)] for at in range(length)) for length in (600, 6000)]
    ids = [encoder.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    table = encoder.model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(encoder.encode_passages(texts), [table[each].mean(0) for each in ids], atol=1e-5)
    assert encoder.query_lengths(texts) == [602, 6002]


@pytest.mark.parametrize("name", ["static", "static with a length", "static, cut on the left"])
def test_an_exported_static_encoder_reads_as_much_as_the_one_it_was_made_from(name, tmp_path):
    CASES[name](tmp_path / "e")
    export_checkpoint(tmp_path / "e", tmp_path / "f")
    texts = [*TEXTS, "file number string " * 300]
    expected = open_encoder(tmp_path / "e", device="cpu").encode_passages(texts)
    np.testing.assert_allclose(open_encoder(tmp_path / "f", device="cpu").encode_passages(texts), expected, atol=1e-6)
    theirs = SentenceTransformer(str(tmp_path / "f"), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, expected, atol=1e-6)
    assert "2147483647 tokens" not in (tmp_path / "f" / "README.md").read_text()


def test_another_reading_of_texts_is_another_identity(tmp_path):
    for name, length in (("e", 5), ("f", 9)):
        with_reading(tmp_path / name, processing_kwargs={"text": {"max_length": length}})
    one, two = (open_encoder(tmp_path / name, device="cpu").identity() for name in "ef")
    assert one != two


def composed(encoder, *settings):
    recipe = compose(ComposeRequest(encoder=str(encoder), settings=settings), PARTS)
    check(recipe, PARTS.registry)
    return recipe


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("dense tanh with bias", "Dense"),
        ("two dense", "Dense 2"),
        ("version 5, lower case", "do_lower_case"),
        ("processing of texts", "processing_kwargs"),
        ("splade, log1p_relu", "activation_function = 'log1p_relu'"),
        ("pooling without the prompt", "include_prompt"),
        ("pooling weightedmean", "weightedmean"),
        ("sparse autoencoder", "SparseAutoEncoder"),
    ],
)
def test_training_does_not_start_from_what_drkit_does_not_compute_unless_told_to(name, named, tmp_path):
    CASES[name](tmp_path / "e")
    with pytest.raises(ProblemsError) as error:
        composed(tmp_path / "e")
    assert named in str(error.value)
    assert "--set encoder.declared=ignore" in str(error.value)
    assert composed(tmp_path / "e", "encoder.declared=ignore").encoder.pretrained


@pytest.mark.parametrize("name", ["cross-encoder", "vectors of tokens", "module somebody_else.models.Pooling"])
def test_training_does_not_start_from_another_kind_of_model(name, tmp_path):
    build, pattern = REFUSED[name]
    build(tmp_path / "e")
    with pytest.raises(DrkitError, match=pattern):
        composed(tmp_path / "e")


def test_the_length_that_version_6_saves_with_the_tokenizer_is_that_of_training(tmp_path):
    plain(tmp_path / "e")
    change(tmp_path / "e" / "tokenizer_config.json", model_max_length=48)
    encoder = composed(tmp_path / "e").encoder
    assert (encoder.query_length, encoder.passage_length) == (48, 48)
    change(tmp_path / "e" / "sentence_bert_config.json", query_length=20)
    encoder = composed(tmp_path / "e").encoder
    assert (encoder.query_length, encoder.passage_length) == (20, 48)


def test_training_from_word_scores_goes_on_with_word_scores(tmp_path):
    CASES["splade"](tmp_path / "e")
    assert declared_settings_of(tmp_path / "e").settings["pooling"] == "lexical"
    sparse(tmp_path / "f", *splade(tmp_path / "f", pooling_strategy="sum"), max_active_dims=5)
    found = declared_settings_of(tmp_path / "f").settings
    assert found["pooling"] == {"use": "lexical", "over_positions": "sum", "top_k": 5}
    flops = ("pretrain=none", "finetune.loss={use = 'flops', warmup = 10}")
    encoder = composed(tmp_path / "f", *flops).encoder
    assert encoder.pooling == Choice("lexical", LexicalConfig(over_positions="sum", top_k=5))
    with pytest.raises(ProblemsError, match=r"pooling = .*'lexical', .*, the recipe says 'mean'"):
        composed(tmp_path / "f", *flops, "encoder.pooling=mean")


def test_word_scores_that_sentence_transformers_computes_are_searched(tmp_path, run_drkit, monkeypatch):
    sparse(tmp_path / "e", *splade(tmp_path / "e", activation_function="log1p_relu"))
    monkeypatch.chdir(tmp_path)
    texts = [text for text in TEXTS if text]
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{n}", "text": t}) + "\n" for n, t in enumerate(texts))
    )
    assert run_drkit("encode", "--encoder", "e", "--collection", "jsonl:t.jsonl", "-o", "v")[0] == 0
    assert json.loads((tmp_path / "v" / "vectors.json").read_text())["format"] == "csr.safetensors"
    assert run_drkit("index", "v", "-o", "i")[0] == 0
    code, out, err = run_drkit("search", "i", "--encoder", "e", "remove suffix")
    assert code == 0, err
    encoder = open_encoder("e", device="cpu")
    scores = encoder.encode_passages(texts) @ encoder.encode_queries(["remove suffix"])[0]
    assert f"d{int(scores.argmax())}" in out
