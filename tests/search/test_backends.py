"""Encoding backends: vectors beside torch's, what is refused, and the commands that write and use them."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from drkit.encoders.export import export_dual, export_encoder
from drkit.encoders.folder import BACKEND_FILES
from drkit.encoders.static import StaticConfig, StaticForMaskedLM
from drkit.errors import DrkitError, MissingExtraError
from drkit.search import DualEncoder, TextEncoder, build_index, encode_corpus
from drkit.search.backends import add_backend
from drkit.search.text_encoder import read_encoder
from tests.search.toys import TEXTS, VOCABULARY, WORDS, masked_lm, tokenizer

HOW = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 48}
SAMPLE = [f"{WORDS[i % 7]} {'abcdefgh'[i % 8]} {WORDS[(i * i) % 6]} {'cab'[i % 3]} " * (1 + i % 4) for i in range(32)]
PACKAGES = {"onnx": ("onnx", "onnxruntime", "onnxscript"), "openvino": ("openvino", "nncf")}


def installed(extra):
    return all(importlib.util.find_spec(package) for package in PACKAGES[extra])


def needs_extra(backend):
    extra = backend.partition("-")[0]
    return pytest.param(backend, marks=pytest.mark.skipif(not installed(extra), reason=f"extra {extra} not installed"))


EACH = [needs_extra(name) for name in BACKEND_FILES]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """An encoder folder with the files of every backend whose extra is installed."""
    folder = export_encoder(masked_lm(), tokenizer(), tmp_path_factory.mktemp("backends") / "encoder", **HOW)
    for name in BACKEND_FILES:
        if installed(name.partition("-")[0]):
            add_backend(folder, name, texts=SAMPLE, length=48)
    return folder


@pytest.mark.parametrize("backend", EACH)
def test_a_backend_gives_the_vectors_of_torch(encoder, backend):
    ours, theirs = (TextEncoder.load(encoder, backend=name) for name in (backend, "torch"))
    assert (ours.backend, theirs.backend, ours.dimension) == (backend, "torch", 32)
    for encode in ("encode_passages", "encode_queries"):
        found, expected = getattr(ours, encode)(TEXTS + SAMPLE), getattr(theirs, encode)(TEXTS + SAMPLE)
        if backend.endswith("int8"):
            assert (found * expected).sum(1).min() > 0.97
            assert np.abs(found - expected).max() > 1e-5  # the codes were used
        else:
            np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("backend", EACH)
def test_vectors_of_two_backends_are_never_mixed(encoder, tmp_path, backend):
    ours, theirs = (TextEncoder.load(encoder, backend=name) for name in (backend, "torch"))
    texts = [(f"d{i}", text) for i, text in enumerate(SAMPLE)]
    vectors = encode_corpus(ours, texts, tmp_path / "vectors")
    assert vectors is not None
    assert vectors.about["encoder"]["backend"] == backend
    with pytest.raises(DrkitError, match=r"backend.* differ"):
        encode_corpus(theirs, texts, tmp_path / "vectors")
    encode_corpus(theirs, texts, tmp_path / "torch")
    with pytest.raises(DrkitError, match=r"backend.* differ"):
        encode_corpus(ours, texts, tmp_path / "torch")
    assert encode_corpus(ours, texts, tmp_path / "vectors") is not None  # its own are resumed
    from drkit.search import Retriever

    index = build_index(vectors, tmp_path / "index")
    Retriever(ours, index).search(["suffix"], 3)
    with pytest.raises(DrkitError, match=f"backend {backend}, and torch encodes the queries"):
        Retriever(theirs, index)


@pytest.mark.parametrize("backend", EACH)
def test_changed_weights_and_changed_files_are_refused(encoder, tmp_path, backend):
    def copy(name):
        return shutil.copytree(encoder, tmp_path / name)

    weights = load_file(copy("weights") / "model.safetensors")
    name = next(name for name in weights if name.endswith("query.weight"))
    save_file({**weights, name: weights[name] * 1.5}, tmp_path / "weights" / "model.safetensors", {"format": "pt"})
    TextEncoder.load(tmp_path / "weights")  # torch reads them
    with pytest.raises(DrkitError, match=rf"model\.safetensors .* has changed since the backend {backend} was"):
        TextEncoder.load(tmp_path / "weights", backend=backend)

    (copy("config") / "config.json").write_text((encoder / "config.json").read_text() + " ")
    with pytest.raises(DrkitError, match=r"config\.json .* has changed"):
        TextEncoder.load(tmp_path / "config", backend=backend)

    save_file(weights, copy("more") / "adapter.safetensors", {"format": "pt"})
    with pytest.raises(DrkitError, match=r"adapter\.safetensors .* has changed"):
        TextEncoder.load(tmp_path / "more", backend=backend)

    with (copy("file") / BACKEND_FILES[backend]).open("ab") as file:
        file.write(b" ")
    with pytest.raises(DrkitError, match="has changed since"):
        TextEncoder.load(tmp_path / "file", backend=backend)

    (copy("absent") / BACKEND_FILES[backend]).unlink()
    with pytest.raises(DrkitError, match="has changed since"):
        TextEncoder.load(tmp_path / "absent", backend=backend)

    record = json.loads((copy("record") / "backends.json").read_text())
    (tmp_path / "record" / "backends.json").write_text(json.dumps({**record, backend: {"files": 3}}))
    with pytest.raises(DrkitError, match=f"does not describe the backend {backend}"):
        TextEncoder.load(tmp_path / "record", backend=backend)
    unnamed = {**record, backend: {**record[backend], "files": {}}}
    (tmp_path / "record" / "backends.json").write_text(json.dumps(unnamed))
    with pytest.raises(DrkitError, match=f"does not describe the backend {backend}"):
        TextEncoder.load(tmp_path / "record", backend=backend)

    (copy("none") / "backends.json").unlink()
    with pytest.raises(DrkitError, match=f"no files of the backend {backend}; .*drkit export"):
        TextEncoder.load(tmp_path / "none", backend=backend)


def test_unknown_backends_and_devices_are_refused(encoder):
    with pytest.raises(DrkitError, match=r"no backend named 'onyx'; did you mean 'onnx'\?"):
        TextEncoder.load(encoder, backend="onyx")
    with pytest.raises(DrkitError, match="runs on the CPU, not on 'cuda'"):
        TextEncoder.load(encoder, "cuda", backend="onnx")


@pytest.mark.parametrize("backend", BACKEND_FILES)
def test_a_missing_extra_is_named(encoder, monkeypatch, backend):
    extra = backend.partition("-")[0]
    absent = PACKAGES[extra]
    found = importlib.util.find_spec
    monkeypatch.setattr("drkit.search.backends.find_spec", lambda name: None if name in absent else found(name))
    for use in (lambda: TextEncoder.load(encoder, backend=backend), lambda: add_backend(encoder, backend)):
        with pytest.raises(MissingExtraError, match=rf"{backend} needs the package .*drkit\[{extra}\]"):
            use()


@pytest.mark.skipif(not installed("openvino"), reason="extra openvino not installed")
def test_another_sample_is_another_backend(encoder, tmp_path):
    shutil.copytree(encoder, tmp_path / "other")
    with pytest.raises(DrkitError, match="needs a sample of the texts"):
        add_backend(tmp_path / "other", "openvino-int8")
    add_backend(tmp_path / "other", "openvino-int8", texts=SAMPLE[:8], length=48)
    one, two = (TextEncoder.load(folder, backend="openvino-int8") for folder in (encoder, tmp_path / "other"))
    assert one.identity()["weights"] != two.identity()["weights"]
    one, two = (TextEncoder.load(folder, backend="openvino") for folder in (encoder, tmp_path / "other"))
    assert one.identity() == two.identity()


@pytest.mark.skipif(not installed("openvino"), reason="extra openvino not installed")
def test_a_graph_that_computes_something_else_is_not_written(encoder, tmp_path, monkeypatch):
    shutil.copytree(encoder, tmp_path / "encoder", ignore=shutil.ignore_patterns("openvino", "backends.json"))
    monkeypatch.setattr(
        "drkit.search.backends._HiddenStates.forward",
        lambda self, input_ids, attention_mask: self.model(input_ids=input_ids).last_hidden_state,
    )
    with pytest.raises(DrkitError, match=r"cannot write the backend openvino of .*(differ|unexpected)"):
        add_backend(tmp_path / "encoder", "openvino")
    assert not (tmp_path / "encoder" / "openvino").exists()
    assert not (tmp_path / "encoder" / "backends.json").exists()


@pytest.mark.skipif(not installed("openvino"), reason="extra openvino not installed")
def test_commands_write_and_use_a_backend(run_drkit, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(SAMPLE)]
    (tmp_path / "beir" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "beir" / "queries.jsonl").write_text('{"_id": "q", "text": "file a"}\n')
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td3\t1\n")
    shutil.copytree(encoder, "plain", ignore=shutil.ignore_patterns("openvino", "onnx", "backends.json"))

    def run(*arguments, fails=False):
        code, out, err = run_drkit(*arguments)
        assert code == (2 if fails else 0), err
        return " ".join((out + err).split())

    backend, collection = ("--backend", "openvino-int8"), ("--collection", "beir:beir")
    assert "--calibrate" in run("export", "plain", *backend, "-o", "none", fails=True)
    run("export", "plain", *backend, "--calibrate", "beir:beir", "-o", "quick")
    said = run("encode", "--encoder", "plain", *collection, *backend, "-o", "v", fails=True)
    assert "drkit export plain --backend openvino-int8" in said
    run("encode", "--encoder", "quick", *collection, *backend, "-o", "v")
    run("index", "v", "-o", "i")
    run("search", "i", "--encoder", "quick", *backend, *collection, "-o", "found.trec")
    assert "--backend openvino-int8" in run("search", "i", "--encoder", "quick", *collection, "-o", "x", fails=True)
    assert "quick (openvino-int8)" in run("evaluate", "--encoder", "quick", *backend, *collection)
    assert "torch's" in run(
        "encode", "--encoder", "quick", *collection, *backend, "--precision", "bfloat16", "-o", "w", fails=True
    )


def test_what_cannot_be_converted_is_refused_before_anything_is_written(run_drkit, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("drkit.search.backends.find_spec", lambda _: True)
    static = tmp_path / "static"
    model = StaticForMaskedLM(StaticConfig(vocab_size=len(VOCABULARY), hidden_size=32, max_position_embeddings=64))
    export_encoder(model, tokenizer(), static, **HOW)
    for source, backend, says in (
        (static, "onnx", "is a static encoder, whose word vectors no backend makes faster"),
        (encoder, "openvino-int8", "--calibrate"),
        (encoder, "onyx", "onnx"),
    ):
        code, _, err = run_drkit("export", str(source), "--backend", backend, "-o", str(tmp_path / "out"))
        assert code == 2
        assert says in " ".join(err.split())
        assert not (tmp_path / "out").exists()
    monkeypatch.setattr("drkit.search.backends.find_spec", lambda _: None)
    code, _, err = run_drkit("export", str(encoder), "--backend", "onnx", "-o", str(tmp_path / "out"))
    assert code == 2
    assert "drkit[onnx]" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not installed("openvino"), reason="extra openvino not installed")
def test_two_encoders_have_a_backend_each(tmp_path):
    folder = export_dual((masked_lm(0), tokenizer()), (masked_lm(1), tokenizer()), tmp_path / "dual", **HOW)
    for side in ("query_encoder", "passage_encoder"):
        add_backend(folder / side, "openvino")
    ours, theirs = (read_encoder(folder, backend=name) for name in ("openvino", "torch"))
    assert isinstance(ours, DualEncoder)
    np.testing.assert_allclose(ours.encode_queries(TEXTS), theirs.encode_queries(TEXTS), atol=2e-6)
    np.testing.assert_allclose(ours.encode_passages(TEXTS), theirs.encode_passages(TEXTS), atol=2e-6)
    assert ours.identity()["weights"] != theirs.identity()["weights"]
