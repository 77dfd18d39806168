"""Encoding backends: vectors beside torch's, what is refused, and the commands that write and use them.

The backends are those of a stranger's plugin, and of drkit's plugin for OpenVINO where its packages are installed.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from drkit.core.registry import installed
from drkit.core.spec import Extension
from drkit.encoders.static import StaticConfig, StaticForMaskedLM
from drkit.errors import DrkitError, UnknownNameError
from drkit.search import DualEncoder, TextEncoder, build_index, encode_corpus
from drkit.search.backends import add_backend
from drkit.search.dual_encoder import read_encoder
from tests.plugins.packages import forget, write_package
from tests.search.made import export_made, export_two
from tests.search.toys import TEXTS, VOCABULARY, WORDS, masked_lm, tokenizer

HOW = {"pooling": "mean", "similarity": "cosine", "query_length": 16, "passage_length": 48}
SAMPLE = [f"{WORDS[i % 7]} {'abcdefgh'[i % 8]} {WORDS[(i * i) % 6]} {'cab'[i % 3]} " * (1 + i % 4) for i in range(32)]
# A whole plugin with a backend, from the page: its declaration, which must not import torch, and its code.
PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "plugins.md").read_text(encoding="utf-8")
PLUGIN, CODE = re.findall(r"```python\n(.*?)```", PAGE.partition("## A backend for encoding")[2], flags=re.DOTALL)[:2]
PLUGIN = PLUGIN.replace("my_package.exported", "theirs_exported")
THEIRS = "exported"
HAS_OPENVINO = all(map(find_spec, ("openvino", "nncf")))
needs_openvino = pytest.mark.skipif(not HAS_OPENVINO, reason="openvino and nncf are not installed")
EACH = [THEIRS, *(pytest.param(name, marks=needs_openvino) for name in ("openvino", "openvino-int8"))]
FILES = {
    THEIRS: "exported/model.pt2",
    "openvino": "openvino/openvino_model.xml",
    "openvino-int8": "openvino/openvino_model_qint8_quantized.xml",
}


@pytest.fixture(scope="module", autouse=True)
def theirs(tmp_path_factory):
    """The stranger's plugin is installed."""
    site = tmp_path_factory.mktemp("site")
    write_package(site, "theirs", PLUGIN, head="")
    (site / "theirs_exported.py").write_text(CODE)
    sys.path.insert(0, str(site))
    installed.cache_clear()
    yield site
    sys.path.remove(str(site))
    forget(site)
    installed.cache_clear()


@pytest.fixture(scope="module")
def encoder(theirs, tmp_path_factory):
    """An encoder folder with the files of every backend whose packages are installed."""
    folder = export_made(masked_lm(), tokenizer(), tmp_path_factory.mktemp("backends") / "encoder", **HOW)
    for name in [THEIRS, *(["openvino", "openvino-int8"] if HAS_OPENVINO else [])]:
        add_backend(folder, name, texts=SAMPLE, length=48)
    return folder


def test_a_strangers_backend_is_short_and_listed(run_drkit, theirs):
    assert len((PLUGIN + CODE).splitlines()) < 40
    assert "exported" in list(installed().table("backend"))
    for arguments in (("list", "backend"), ("plugins",), ("show", "backend", "exported")):
        code, out, _ = run_drkit(*arguments)
        assert code == 0
        assert "exported" in out
        assert "theirs" in out
    assert str(theirs / "theirs_exported.py") in " ".join(out.split())


def test_the_code_of_every_backend_is_found_without_its_packages(run_drkit):
    for name in installed().table("backend"):
        code, out, _ = run_drkit("show", "backend", name, "--json")
        assert code == 0
        path, line = json.loads(out)["code"].rsplit(":", 1)
        assert Path(path).read_text().splitlines()[int(line) - 1].strip()


def test_what_is_not_a_backend_is_refused_when_it_is_used(theirs, tmp_path, monkeypatch, encoder):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = PLUGIN.replace("return [", "return [Extension('no-backend', 'json:dumps', 'something else'), ")
    write_package(tmp_path, "others", source.replace('"exported"', '"of-others"'), head="")
    installed.cache_clear()
    assert {THEIRS, "no-backend", "of-others"} <= {*installed().table("backend")}
    assert TextEncoder.load(encoder, backend=THEIRS).identity()["backend"] == THEIRS
    assert TextEncoder.load(encoder).backend == "torch"
    with pytest.raises(DrkitError, match=r"json:dumps of others 1.0 .*drkit.search.Backend.* <function"):
        TextEncoder.load(encoder, backend="no-backend")
    with pytest.raises(DrkitError, match="backend of-others"):
        TextEncoder.load(encoder, backend="of-others")
    installed.cache_clear()


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
    with pytest.raises(DrkitError, match=rf"{backend}.*torch.*--backend {backend}"):
        Retriever(theirs, index)


@pytest.mark.parametrize("backend", EACH)
def test_changed_weights_and_changed_files_are_refused(encoder, tmp_path, backend):
    def copy(name):
        return shutil.copytree(encoder, tmp_path / name)

    weights = load_file(copy("weights") / "model.safetensors")
    name = next(name for name in weights if name.endswith("query.weight"))
    save_file({**weights, name: weights[name] * 1.5}, tmp_path / "weights" / "model.safetensors", {"format": "pt"})
    TextEncoder.load(tmp_path / "weights")  # torch reads them
    with pytest.raises(
        DrkitError, match=rf"model\.safetensors .*{backend}.*drkit export .*weights --backend {backend}"
    ):
        TextEncoder.load(tmp_path / "weights", backend=backend)

    (copy("config") / "config.json").write_text((encoder / "config.json").read_text() + " ")
    with pytest.raises(DrkitError, match=rf"^config\.json .*config.* --backend {backend}"):
        TextEncoder.load(tmp_path / "config", backend=backend)

    save_file(weights, copy("more") / "adapter.safetensors", {"format": "pt"})
    with pytest.raises(DrkitError, match=rf"^adapter\.safetensors .*more.* --backend {backend}"):
        TextEncoder.load(tmp_path / "more", backend=backend)

    with (copy("file") / FILES[backend]).open("ab") as file:
        file.write(b" ")
    with pytest.raises(DrkitError, match=rf"^{FILES[backend]} .*file.* --backend {backend}"):
        TextEncoder.load(tmp_path / "file", backend=backend)

    (copy("absent") / FILES[backend]).unlink()
    with pytest.raises(DrkitError, match=rf"^{FILES[backend]} .*absent.* --backend {backend}"):
        TextEncoder.load(tmp_path / "absent", backend=backend)

    record = json.loads((copy("record") / "backends.json").read_text())
    (tmp_path / "record" / "backends.json").write_text(json.dumps({**record, backend: {"files": 3}}))
    with pytest.raises(DrkitError, match=rf"backends\.json .*{backend}.*drkit export .*record --backend {backend}"):
        TextEncoder.load(tmp_path / "record", backend=backend)
    unnamed = {**record, backend: {**record[backend], "files": {}}}
    (tmp_path / "record" / "backends.json").write_text(json.dumps(unnamed))
    with pytest.raises(DrkitError, match=rf"backends\.json .*{backend}.*drkit export .*record --backend {backend}"):
        TextEncoder.load(tmp_path / "record", backend=backend)

    (copy("none") / "backends.json").unlink()
    with pytest.raises(DrkitError, match=rf"none .*{backend}.*drkit export .*none --backend {backend}"):
        TextEncoder.load(tmp_path / "none", backend=backend)


def test_unknown_backends_and_devices_are_refused(encoder):
    with pytest.raises(UnknownNameError) as caught:
        TextEncoder.load(encoder, backend="openvina")
    assert (caught.value.kind, caught.value.known) == ("backend", ("exported", "openvino", "openvino-int8", "torch"))
    with pytest.raises(DrkitError, match=rf"{THEIRS}.*CPU.*'cuda'.*auto.*cpu"):
        TextEncoder.load(encoder, "cuda", backend=THEIRS)
    with pytest.raises(DrkitError, match=r"\btorch\b.*backend torch"):
        add_backend(encoder, "torch")


def test_missing_packages_are_named_with_the_command_that_installs_them(encoder, monkeypatch):
    def nothing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.distribution", nothing)
    monkeypatch.delitem(sys.modules, "drkit_openvino.backend", raising=False)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(DrkitError, match="pip install openvino nncf"):
        add_backend(encoder, "openvino-int8", texts=SAMPLE)
    with pytest.raises(DrkitError, match=r"pip install openvino$"):
        TextEncoder.load(encoder, backend="openvino")


def test_an_extension_says_what_it_needs():
    absent = Extension("absent", "no_such_module:X", "a module that is missing", packages=("no-such-package",))
    with pytest.raises(DrkitError, match="pip install no-such-package"):
        absent.load()
    for target, reason in (("no_such_module:X", "ModuleNotFoundError"), ("json:no_such_name", "AttributeError")):
        with pytest.raises(DrkitError, match=rf"{target} .*theirs 1\.0.*{reason}"):
            Extension("broken", target, "code that is missing", provider="theirs 1.0").load()
    for wrong in (("No Name", "a:b", "c"), ("name", "nowhere", "c"), ("name", "a:b", "")):
        with pytest.raises(ValueError, match="extension"):
            Extension(*wrong)


@needs_openvino
def test_another_sample_is_another_backend(encoder, tmp_path):
    shutil.copytree(encoder, tmp_path / "other")
    with pytest.raises(DrkitError, match=r"openvino-int8.*--calibrate RUN"):
        add_backend(tmp_path / "other", "openvino-int8")
    add_backend(tmp_path / "other", "openvino-int8", texts=SAMPLE[:8], length=48)
    one, two = (TextEncoder.load(folder, backend="openvino-int8") for folder in (encoder, tmp_path / "other"))
    assert one.identity()["weights"] != two.identity()["weights"]
    one, two = (TextEncoder.load(folder, backend="openvino") for folder in (encoder, tmp_path / "other"))
    assert one.identity() == two.identity()


@needs_openvino
def test_a_graph_that_computes_something_else_is_not_written(encoder, tmp_path, monkeypatch):
    shutil.copytree(encoder, tmp_path / "encoder", ignore=shutil.ignore_patterns("openvino", "backends.json"))
    monkeypatch.setattr(
        "drkit.search.backends._HiddenStates.forward",
        lambda self, input_ids, attention_mask: self.model(input_ids=input_ids).last_hidden_state,
    )
    with pytest.raises(DrkitError, match=r"\bopenvino\b .*encoder.*(differ|unexpected)"):
        add_backend(tmp_path / "encoder", "openvino")
    assert not (tmp_path / "encoder" / "openvino").exists()
    assert not (tmp_path / "encoder" / "backends.json").exists()


@needs_openvino
def test_commands_write_and_use_a_backend(run_drkit, encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(SAMPLE)]
    (tmp_path / "beir" / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "beir" / "queries.jsonl").write_text('{"_id": "q", "text": "file a"}\n')
    (tmp_path / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td3\t1\n")
    shutil.copytree(encoder, "plain", ignore=shutil.ignore_patterns("openvino", "exported", "backends.json"))

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


def test_what_cannot_be_converted_is_refused_before_anything_is_written(run_drkit, encoder, tmp_path):
    static = tmp_path / "static"
    model = StaticForMaskedLM(StaticConfig(vocab_size=len(VOCABULARY), hidden_size=32, max_position_embeddings=64))
    export_made(model, tokenizer(), static, **HOW)
    for source, backend, says in (
        (static, "exported", "static encoder"),
        (encoder, "torch", "backend torch"),
        (encoder, "exportd", "exported"),
    ):
        code, _, err = run_drkit("export", str(source), "--backend", backend, "-o", str(tmp_path / "out"))
        assert code == 2
        assert says in " ".join(err.split())
        assert not (tmp_path / "out").exists()


@needs_openvino
def test_two_encoders_have_a_backend_each(tmp_path):
    folder = export_two((masked_lm(0), tokenizer()), (masked_lm(1), tokenizer()), tmp_path / "dual", **HOW)
    for side in ("query_encoder", "passage_encoder"):
        add_backend(folder / side, "openvino")
    ours, theirs = (read_encoder(folder, backend=name) for name in ("openvino", "torch"))
    assert isinstance(ours, DualEncoder)
    np.testing.assert_allclose(ours.encode_queries(TEXTS), theirs.encode_queries(TEXTS), atol=2e-6)
    np.testing.assert_allclose(ours.encode_passages(TEXTS), theirs.encode_passages(TEXTS), atol=2e-6)
    assert ours.identity()["weights"] != theirs.identity()["weights"]
