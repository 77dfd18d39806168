"""What a saved model declares is there: transformers finds every weight of the class in its config.json."""

from __future__ import annotations

import re

import pytest
import torch
import transformers as hf

from drkit.encoders import CrossEncoder, MaskedLmEncoder
from drkit.encoders.architectures import GELU, architecture
from drkit.encoders.heads import tie_lm_head
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.testing.toys import toy_encoder, toy_tokenizer
from drkit.train.checkpoints import load_encoder, save_masked_lm
from tests.encoders.toys import CAUSAL, NAMES, tiny
from tests.search.made import export_made

TYPES = {name: tiny(name)[0].config.model_type for name in (*NAMES, *CAUSAL)}
TIES = [name for name in NAMES if GELU not in architecture(TYPES[name]).transform and name != "electra"]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def assert_whole(folder):
    """The class that config.json declares loads without a weight that is missing, left over or of another shape."""
    config = hf.AutoConfig.from_pretrained(folder)
    (declared,) = config.architectures
    _, report = getattr(hf, declared).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), (declared, report)


@pytest.mark.parametrize("name", [*NAMES, *CAUSAL])
def test_a_checkpoint_loads_whole_in_the_class_that_it_declares(name, tmp_path):
    model, tokenizer = tiny(name)
    save_masked_lm(MaskedLmEncoder(model), tokenizer, tmp_path)
    assert_whole(tmp_path)


@pytest.mark.parametrize("name", TIES)
def test_a_head_without_a_transform_is_declared_as_no_class(name, tmp_path):
    model, tokenizer = tiny(name)
    tie_lm_head(model)
    save_masked_lm(MaskedLmEncoder(model), tokenizer, tmp_path)
    assert not hf.AutoConfig.from_pretrained(tmp_path).architectures
    again = load_encoder(tmp_path, pooling="cls")
    assert all(torch.equal(weight, again.model.state_dict()[key]) for key, weight in model.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_an_exported_encoder_and_a_reranker_load_whole(name, tmp_path):
    model, tokenizer = tiny(name)
    settings = {"similarity": "dot", "query_length": 8, "passage_length": 16}
    export_made(model, tokenizer, tmp_path / "dense", pooling="mean", **settings)
    assert_whole(tmp_path / "dense")
    save_masked_lm(MaskedLmEncoder(model), tokenizer, tmp_path / "start")
    CrossEncoder.start_from(str(tmp_path / "start"), max_length=32).save(tmp_path / "reranker")
    assert_whole(tmp_path / "reranker")


def test_a_lexical_encoder_loads_whole(tmp_path):
    model, tokenizer = tiny("bert")
    settings = {"similarity": "dot", "query_length": 8, "passage_length": 16}
    pooling = LearnedPooling("lexical", {}, MaskedLmEncoder(model).info(tokenizer))
    export_made(model, tokenizer, tmp_path, pooling="lexical", learned_pooling=pooling, **settings)
    assert_whole(tmp_path)


def card_line(folder):
    """The line of the card that loads the encoder with dropout; None without one."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^encoder = .*config_kwargs.*$", card, re.MULTILINE)
    return found[0].replace("path/to/this/folder", str(folder)) if found else None


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "distilbert", "electra", "deberta", "deberta-v2", "modernbert", "llama"]
)
def test_the_card_says_how_to_train_on_with_dropout(name, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    model, tokenizer = tiny(name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    settings = {"pooling": "mean", "similarity": "dot", "query_length": 8, "passage_length": 16}
    export_made(model, tokenizer, tmp_path, **settings)
    known = {"SentenceTransformer": library.SentenceTransformer}
    exec(card_line(tmp_path), known)
    features = known["encoder"].preprocess(["a man lay under the tree"])
    known["encoder"].train()
    one, two = (known["encoder"](dict(features))["sentence_embedding"] for _ in range(2))
    assert not torch.equal(one, two)


def test_the_card_of_an_encoder_with_dropout_says_nothing_of_it(tmp_path):
    settings = {"pooling": "mean", "similarity": "dot", "query_length": 8, "passage_length": 16}
    for name, encoder in {"with": toy_encoder(dropout=0.1), "static": toy_encoder(layers=0)}.items():
        export_made(encoder.model, toy_tokenizer(), tmp_path / name, **settings)
        assert card_line(tmp_path / name) is None
