"""Encoder folders with modules that drkit does not compute itself: sentence-transformers does."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from drkit.commands import export_checkpoint, open_encoder
from drkit.errors import DrkitError
from tests.search.made import export_made
from tests.search.toys import TEXTS, masked_lm, tokenizer

HOW = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 48}


@pytest.fixture(scope="module")
def transformer(tmp_path_factory):
    """The folder of a bare transformer with its tokenizer."""
    folder = tmp_path_factory.mktemp("plain") / "encoder"
    export_made(masked_lm(), tokenizer(), folder, **HOW)
    return folder


def save(transformer, folder, *modules, mode="mean"):
    """Write a folder of sentence-transformers: transformer, pooling, further modules."""
    first = Transformer(str(transformer), max_seq_length=48)
    model = SentenceTransformer(modules=[first, Pooling(32, pooling_mode=mode), *modules], device="cpu")
    model.save(str(folder))
    return SentenceTransformer(str(folder), device="cpu")


def dense(out=8):
    torch.manual_seed(1)
    return Dense(32, out, activation_function=torch.nn.Tanh())


def lower(transformer, folder):
    save(transformer, folder)
    path = folder / "sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": True}))
    return SentenceTransformer(str(folder), device="cpu")


FOREIGN = {
    "dense": lambda transformer, folder: save(transformer, folder, dense()),
    "dense-normalised": lambda transformer, folder: save(transformer, folder, dense(), Normalize()),
    "normalised-dense": lambda transformer, folder: save(transformer, folder, Normalize(), dense()),
    "weightedmean": lambda transformer, folder: save(transformer, folder, mode="weightedmean"),
    "mean_sqrt_len": lambda transformer, folder: save(transformer, folder, mode="mean_sqrt_len_tokens"),
    "lower": lambda transformer, folder: lower(transformer, folder),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_vectors_are_those_of_sentence_transformers(name, transformer, tmp_path):
    theirs = FOREIGN[name](transformer, tmp_path / "e")
    ours = open_encoder(tmp_path / "e")
    texts = [*TEXTS, "Number FILE", "a"]
    for encode, expected in (("encode_passages", theirs.encode_document), ("encode_queries", theirs.encode_query)):
        np.testing.assert_allclose(getattr(ours, encode)(texts), expected(texts, normalize_embeddings=True), atol=1e-6)
    assert ours.identity() != open_encoder(transformer).identity()
    prompted = open_encoder(tmp_path / "e", passage_prompt="file ")
    assert np.abs(prompted.encode_passages(texts) - ours.encode_passages(texts)).max() > 1e-4
    with pytest.raises(DrkitError, match=r"drkit supports|unsupported|lower-case"):
        export_checkpoint(tmp_path / "e", tmp_path / "out")


def test_without_sentence_transformers_the_reason_and_the_package_are_named(transformer, tmp_path, monkeypatch):
    FOREIGN["dense"](transformer, tmp_path / "e")
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(DrkitError, match=r"unsupported Dense module.*sentence-transformers"):
        open_encoder(tmp_path / "e")


def test_modules_of_other_packages_and_pickled_weights_are_not_loaded(transformer, tmp_path):
    FOREIGN["dense"](transformer, tmp_path / "e")
    modules = json.loads((tmp_path / "e" / "modules.json").read_text())
    modules[2]["type"] = "os.path"
    (tmp_path / "e" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(DrkitError, match=r"modules\.json .*'os\.path'"):
        open_encoder(tmp_path / "e")
    FOREIGN["weightedmean"](transformer, tmp_path / "f")
    (tmp_path / "f" / "model.safetensors").rename(tmp_path / "f" / "pytorch_model.bin")
    with pytest.raises(DrkitError, match="pickled weights"):
        open_encoder(tmp_path / "f")


def test_prompts_are_options_and_part_of_the_identity(transformer, run_drkit, tmp_path, monkeypatch):
    plain, prompted = open_encoder(transformer), open_encoder(transformer, query_prompt="file ")
    assert (prompted.card.query_prompt, prompted.card.passage_prompt) == ("file ", "")
    assert prompted.identity() != plain.identity()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS if text))
    command = ("encode", "--encoder", transformer, "--collection", "jsonl:texts.jsonl")
    assert run_drkit(*command, "-o", "one")[0] == 0
    assert run_drkit(*command, "--passage-prompt", "file ", "-o", "two")[0] == 0
    one, two = (json.loads((tmp_path / name / "vectors.json").read_text())["encoder"] for name in ("one", "two"))
    assert (one["passage_prompt"], two["passage_prompt"]) == ("", "file ")
    code, _, err = run_drkit(*command, "--passage-prompt", "file ", "-o", "one")
    assert code == 2
    assert "passage_prompt" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("encode", "--encoder", "E", "--collection", "jsonl:t.jsonl", "-o", "v", "--set", "encoder.pooling=cls"),
        ("evaluate", "r.trec", "--collection", "jsonl:t.jsonl", "--set", "evaluation.exclude_self=true"),
        ("compare", "r.trec", "s.trec", "--collection", "jsonl:t.jsonl", "--set", "evaluation.depth=3"),
        ("rerank", "r.trec", "--model", "E", "--collection", "jsonl:t.jsonl", "-o", "x", "--set", "reranker.depth=3"),
        ("mine", "--collection", "jsonl:t.jsonl", "--miner", "bm25", "-o", "n.jsonl", "--set", "encoder.pooling=cls"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_setting_that_a_command_does_not_read_is_refused(arguments, transformer, run_drkit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "E").symlink_to(transformer)
    (tmp_path / "t.jsonl").write_text('{"text": "a file"}\n')
    for name in ("r.trec", "s.trec"):
        (tmp_path / name).write_text("q Q0 d 1 1.0 x\n")
    code, _, err = run_drkit(*arguments)
    assert code == 2
    assert arguments[-1].partition("=")[0].partition(".")[0] in err
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(("name", "advised"), [("e5-small", "--query-prompt 'query: '"), ("my-bge", "Represent")])
def test_a_family_that_is_published_with_prompts_is_named(name, advised, transformer, tmp_path, caplog):
    (tmp_path / name).symlink_to(transformer)
    with caplog.at_level(logging.WARNING, logger="drkit"):
        open_encoder(tmp_path / name)
    assert advised in caplog.text
    caplog.clear()
    open_encoder(tmp_path / name, query_prompt="")
    assert advised not in caplog.text
