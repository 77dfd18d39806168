"""An exported folder gives the same vectors in drkit, sentence-transformers and transformers, offline."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from drkit.errors import DrkitError
from drkit.search.text_encoder import TextEncoder
from tests.search.made import export_made, reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer

HOW = {"pooling": "mean", "similarity": "cosine", "query_length": 48, "passage_length": 48}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def export(folder, **how):
    return export_made(masked_lm(), tokenizer(), folder, **{**HOW, **how}, provenance={"seed": 1, "parts": ["a|b"]})


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "last"])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_sentence_transformers_gives_the_same_vectors(tmp_path, pooling, similarity):
    from sentence_transformers import SentenceTransformer

    how = {**HOW, "pooling": pooling, "similarity": similarity}
    export(tmp_path / "e", **how)
    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
    before = reader_of(masked_lm().base_model, tokenizer(), **how).encode_passages(TEXTS)
    loaded = TextEncoder.load(tmp_path / "e")
    assert (loaded.card.pooling, loaded.card.similarity) == (pooling, similarity)
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), before, atol=1e-5)
    np.testing.assert_allclose(loaded.encode_queries(TEXTS), before, atol=1e-5)
    np.testing.assert_allclose(theirs.encode(TEXTS), before, atol=1e-5)
    assert theirs.similarity_fn_name == similarity
    assert theirs.max_seq_length == 48


@pytest.mark.parametrize(("similarity", "normalize"), [("cosine", False), ("dot", True), ("dot", False)])
def test_prompts_stand_before_queries_and_passages_in_both_libraries(tmp_path, similarity, normalize):
    from sentence_transformers import SentenceTransformer

    how = {**HOW, "similarity": similarity, "normalize": normalize}
    export(tmp_path / "e", **how, query_prompt="remove ", passage_prompt="string: ")
    theirs = SentenceTransformer(str(tmp_path / "e"), device="cpu", local_files_only=True)
    loaded = TextEncoder.load(tmp_path / "e")
    assert (loaded.card.query_prompt, loaded.card.passage_prompt) == ("remove ", "string: ")
    np.testing.assert_allclose(loaded.encode_queries(TEXTS), theirs.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), theirs.encode_document(TEXTS), atol=1e-5)
    assert np.abs(loaded.encode_queries(TEXTS) - loaded.encode_passages(TEXTS)).max() > 1e-3
    lengths = np.linalg.norm(loaded.encode_passages(TEXTS), axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == (similarity == "cosine" or normalize)


def test_what_sentence_transformers_writes_is_read(tmp_path):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(export(tmp_path / "e", pooling="cls")), device="cpu", local_files_only=True)
    theirs.prompts = {"query": "each ", "document": ""}
    theirs.save(str(tmp_path / "again"))
    loaded = TextEncoder.load(tmp_path / "again")
    assert (loaded.card.pooling, loaded.card.similarity, loaded.card.passage_length) == ("cls", "cosine", 48)
    np.testing.assert_allclose(loaded.encode_passages(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(loaded.encode_queries(TEXTS), theirs.encode_query(TEXTS), atol=1e-5)


def test_transformers_loads_it_whole_and_without_complaint(tmp_path, caplog):
    export(tmp_path / "e")
    transformers_logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, report = AutoModel.from_pretrained(tmp_path / "e", output_loading_info=True)
        words = AutoTokenizer.from_pretrained(tmp_path / "e")
    transformers_logging.disable_propagation()
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    original = masked_lm().base_model.state_dict()
    for name, value in original.items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
    assert words(TEXTS)["input_ids"] == tokenizer()(TEXTS)["input_ids"]
    with safe_open(tmp_path / "e" / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert names == {*original, "pooler.dense.weight", "pooler.dense.bias"}


def test_the_card_and_drkit_json_tell_where_it_comes_from(tmp_path):
    export(tmp_path / "e")
    assert json.loads((tmp_path / "e" / "drkit.json").read_text()) == {
        "format": 1, **HOW, "query_prompt": "", "passage_prompt": "", "normalize": False,
        "provenance": {"seed": 1, "parts": ["a|b"]},
    }  # fmt: skip
    assert '| parts | \\["a\\|b"\\] |' in (tmp_path / "e" / "README.md").read_text()


def test_exporting_leaves_everything_else_alone_and_replaces_as_a_whole(tmp_path):
    model, words = masked_lm(), tokenizer()
    state, limit, training = torch.get_rng_state(), words.model_max_length, model.training
    export_made(model, words, tmp_path / "e", **HOW)
    (tmp_path / "e" / "old").write_text("")
    with pytest.raises(DrkitError, match=r"/e .*\bold\b"):
        export_made(model, words, tmp_path / "e", **HOW)
    (tmp_path / "e" / "old").unlink()
    export_made(model, words, tmp_path / "e", **HOW)
    assert torch.equal(state, torch.get_rng_state())
    assert (words.model_max_length, model.training) == (limit, training)
    assert [p.name for p in tmp_path.iterdir()] == ["e"]
    with pytest.raises(DrkitError, match="pooling"):
        export_made(model, words, tmp_path / "e", **{**HOW, "pooling": "sum"})
    assert (tmp_path / "e" / "modules.json").is_file()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", None, "no modules.json"),
        ("modules.json", "{", r"modules\.json .*JSON"),
        (
            "modules.json",
            [
                {"type": "sentence_transformers.models.Transformer", "path": ""},
                {"type": "sentence_transformers.models.Dense", "path": "1"},
            ],
            r"modules \(Transformer, Dense",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, r"pooling \(weightedmean\)"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls, mean"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "manhattan"}, "similarity 'manhattan'"),
        ("model.safetensors", "cut off", r"/e'.*header"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, file, content, message):
    path = export(tmp_path / "e") / file
    path.unlink()
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DrkitError, match=message):
        TextEncoder.load(tmp_path / "e")
    with pytest.raises(DrkitError, match=r"not found: .*/none;"):
        TextEncoder.load(tmp_path / "none")
