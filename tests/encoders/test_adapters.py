"""Folders with only an adapter: merged into their base model, or one message; needs `pip install peft` for most."""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from drkit.core.files import path_state
from drkit.core.loading import load_pretrained
from drkit.encoders import MaskedLmEncoder
from drkit.errors import DrkitError, MissingExtraError
from drkit.search import TextEncoder
from tests.encoders.toys import tiny

TEXTS = ["a man lay under the tree", "the wolf and the lamb"]
needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")


@pytest.fixture
def base(tmp_path):
    model, tokenizer = tiny("bert")
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapted(base, folder, model, **settings):
    """Write an adapter with weights that change the model; the model with it."""
    import peft

    config = peft.LoraConfig(r=2, target_modules=["query", "value"], **settings)
    made = peft.get_peft_model(model, config)
    torch.manual_seed(1)
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    made.save_pretrained(folder)
    about = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**about, "base_model_name_or_path": str(base)}))
    return made.merge_and_unload().eval()


def hidden(model):
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        return model(ids).last_hidden_state


@needs_peft
def test_an_adapter_of_a_backbone_is_merged_with_and_without_a_head(base, tmp_path):
    backbone = load_pretrained("AutoModel", str(base), "load")
    before = hidden(backbone)
    expected = hidden(adapted(base, tmp_path / "adapter", backbone))
    assert not torch.allclose(before, expected, atol=1e-2)
    assert torch.allclose(hidden(load_pretrained("AutoModel", str(tmp_path / "adapter"), "load")), expected, atol=1e-5)
    encoder = MaskedLmEncoder.from_pretrained(str(tmp_path / "adapter"))
    assert torch.allclose(hidden(encoder.backbone), expected, atol=1e-5)
    assert not [name for name in encoder.state_dict() if "lora" in name]


@needs_peft
def test_an_adapter_in_a_folder_of_sentence_transformers_gives_its_vectors(base, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    transformer = modules.Transformer(str(base), max_seq_length=32)
    pooling = modules.Pooling(transformer.get_embedding_dimension(), "mean")
    theirs = library.SentenceTransformer(modules=[transformer, pooling], device="cpu")
    theirs.save(str(tmp_path / "encoder"))
    for name in ("model.safetensors", "config.json"):
        (tmp_path / "encoder" / name).unlink()
    backbone = load_pretrained("AutoModel", str(base), "load")
    adapted(base, tmp_path / "adapter", backbone)
    for file in (tmp_path / "adapter").glob("adapter_*"):
        shutil.copy(file, tmp_path / "encoder")
    expected = library.SentenceTransformer(str(tmp_path / "encoder"), device="cpu").encode(
        TEXTS, normalize_embeddings=True
    )
    ours = TextEncoder.load(tmp_path / "encoder").encode_passages(TEXTS)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@needs_peft
def test_an_adapter_of_another_model_is_refused(base, tmp_path):
    adapted(base, tmp_path / "adapter", load_pretrained("AutoModel", str(base), "load"))
    model, tokenizer = tiny("distilbert")
    model.save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    about = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    about["base_model_name_or_path"] = str(tmp_path / "other")
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(DrkitError, match=r"adapter"):
        load_pretrained("AutoModel", str(tmp_path / "adapter"), "load")


def write_adapter(folder, base):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))


@pytest.mark.skipif(find_spec("peft") is not None, reason="peft is installed")
def test_without_peft_one_message_says_how_to_install_it(base, tmp_path):
    write_adapter(tmp_path / "adapter", str(base))
    with pytest.raises(MissingExtraError, match=r"pip install 'drkit\[peft\]'"):
        load_pretrained("AutoModel", str(tmp_path / "adapter"), "load")


@pytest.mark.parametrize("name", ["somebody/a-model", "", None, "../adapter"])
def test_a_base_model_that_is_not_here_is_named(name, tmp_path):
    write_adapter(tmp_path / "adapter", name)
    with pytest.raises(DrkitError, match=r"adapter_config.json: the base model of this adapter is .*not a folder here"):
        load_pretrained("AutoModel", str(tmp_path / "adapter"), "load")


def test_the_state_of_an_adapter_is_also_that_of_its_base_model(base, tmp_path):
    write_adapter(tmp_path / "adapter", "../base")  # beside it
    before = path_state(tmp_path / "adapter")
    os.utime(base / "model.safetensors", (1, 1))
    assert path_state(tmp_path / "adapter") != before
