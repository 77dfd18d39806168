"""A run that reads titles as pairs: the same texts in training, in its index, in the exported folder, and again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from drkit.commands.inputs import export_checkpoint, open_encoder
from drkit.commands.search import encode_collection
from drkit.data.corpus import StoredCorpus
from drkit.data.store import TokenStore
from drkit.errors import DrkitError
from drkit.search.text_encoder import TextEncoder
from drkit.train.checkpoints import load_tokenizer
from tests.runs.conftest import drkit, tiny, write_lines

PAIR = "--set=encoder.titles=pair"


@pytest.fixture(scope="module")
def run(beir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("titles") / "run"
    made = ("compose", "--masker", "pmi", "--decoder", "enhanced", *tiny(beir), "--set=finetune.baselines=[]")
    done = drkit(*made, PAIR, "--set=encoder.pooling=cls", "--run-dir", folder)
    return folder, done.stderr


def test_all_stages_read_pairs(run):
    folder, _ = run
    tokenizer, corpus = load_tokenizer(str(folder / "vocabulary")), StoredCorpus(folder / "collection/passages")
    store = TokenStore.open(folder / "tokens")
    for number, passage in enumerate(corpus):
        assert store.tokens(number).tolist() == tokenizer(passage.title, passage.text)["input_ids"]
    for stage in ("initial", "pretrained", "retriever-1", "encoder"):
        assert json.loads((folder / stage / "config.json").read_text())["drkit_titles"]["reads"] == "pair", stage


def test_the_index_has_the_vectors_of_sentence_transformers(run):
    folder, _ = run
    corpus = list(StoredCorpus(folder / "collection/passages"))
    encoder = TextEncoder.load(folder / "encoder")
    stored = np.load(folder / "index" / "vectors.npy")
    ours = encoder.encode_passages([encoder.read(passage) for passage in corpus])
    theirs = SentenceTransformer(str(folder / "encoder"), device="cpu").encode_document(
        [(passage.title, passage.text) for passage in corpus]
    )
    assert np.allclose(stored, ours, atol=1e-5)
    assert np.allclose(theirs, ours, atol=1e-5)
    joined = encoder.encode_passages([passage.content for passage in corpus])
    assert np.abs(joined - ours).max() > 1e-3
    assert 'encode_document([("title", "text")])' in (folder / "encoder/README.md").read_text()


def test_the_collection_is_encoded_as_pairs(run, beir, tmp_path):
    folder, _ = run
    vectors = encode_collection(open_encoder(str(folder)), f"beir:{beir}", tmp_path / "vectors")
    assert np.allclose(np.load(folder / "index" / "vectors.npy"), vectors.shards[:], atol=1e-5)


def test_the_exported_folder_declares_it(run, beir, tmp_path):
    folder, recipe = run[0], tmp_path / "recipe.toml"
    start = ("compose", "--encoder", folder / "encoder", "--collection", f"beir:{beir}", "--dry-run")
    drkit(*start, "--output", recipe)
    assert 'titles = "pair"' in recipe.read_text()
    refused = drkit(*start, "--set=encoder.titles=joined", check=False)
    assert refused.returncode == 2
    assert "was trained with titles = 'pair', the recipe says 'joined'" in refused.stderr


def test_a_backend_without_token_types_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr("drkit.commands.inputs.check_conversion", lambda *_: None)  # its package is not installed
    with pytest.raises(DrkitError, match="reads titles as segments of their own"):
        export_checkpoint(str(run[0]), tmp_path / "converted", backends=("openvino",))
    assert not (tmp_path / "converted").exists()


def test_passages_without_titles_are_noted(beir, tmp_path):
    rows = [json.loads(line) for line in (beir / "corpus.jsonl").read_text().splitlines()]
    few = tmp_path / "few"
    few.mkdir()
    write_lines(few / "corpus.jsonl", [{**row, "title": row["title"] if n < 50 else ""} for n, row in enumerate(rows)])
    (few / "queries.jsonl").symlink_to(beir / "queries.jsonl")
    (few / "qrels").symlink_to(beir / "qrels")
    made = ("compose", "--masker", "uniform", "--decoder", "mlm", *tiny(few), PAIR, "--run-dir", tmp_path / "run")
    printed = drkit(*made, "--set=finetune=none")
    assert "10 of 60 passages have no title: their texts are read alone" in printed.stdout + printed.stderr


def test_a_static_encoder_is_refused(beir, tmp_path):
    made = ("compose", "--decoder", "bow", *tiny(beir, "layers"), "--set=encoder.layers=0", PAIR)
    refused = drkit(*made, "--run-dir", tmp_path / "run", check=False)
    assert refused.returncode == 2
    assert "a static encoder reads words in no order" in refused.stderr
