"""Decoder-only encoders that read in both directions: pre-trained, fine-tuned, searched and exported."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers as hf

from drkit.core.registry import installed
from drkit.encoders import MaskedLmEncoder, context_from
from drkit.encoders.architectures import attention_keys, reads_both_ways
from drkit.errors import DrkitError
from drkit.maskers import UniformConfig, UniformMasker
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.plan import plan
from drkit.search import TextEncoder
from tests.encoders.test_runs import PARTS, SETTINGS, checkpoint, collection, run  # noqa: F401
from tests.encoders.toys import SIZES, left_to_right
from tests.refusals import says

BOTH = ("encoder.attention=bidirectional", "encoder.pooling=mean")
TEXTS = ["ada wrote a compiler", "grace", "", "a text that is so long that it is cut where its last token goes " * 3]
WINDOW = 2
MODELS = {
    "llama": (hf.LlamaForCausalLM, {}),
    "qwen3": (
        hf.Qwen3ForCausalLM,
        {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gemma3": (
        hf.Gemma3ForCausalLM,
        {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 8,
        },
    ),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def tokenizer(extra=("<|spare|>",)):
    """A byte-level tokenizer like Qwen's, with special tokens that have no role."""
    made = hf.AutoTokenizer.from_pretrained(saved) if (saved := None) else left_to_right("")
    import copy

    made = copy.deepcopy(made)
    made.add_special_tokens({"additional_special_tokens": list(extra)})
    return made


def made(name, folder, *, extra=("<|spare|>",), **more):
    """Write a tiny causal LM with random weights, and its tokenizer."""
    model_class, own = MODELS[name]
    words = tokenizer(extra)
    keys = {"num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": True}
    config = model_class.config_class(vocab_size=len(words), **{**SIZES, **keys, **own, **more})
    state = torch.get_rng_state()
    torch.manual_seed(1)
    model = model_class(config)
    torch.set_rng_state(state)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def test_smoke(collection, tmp_path):
    start = made("llama", tmp_path / "start")
    done = run(start, collection, tmp_path / "run", *BOTH, masker="uniform", decoder="enhanced")
    print(done["pretrained"].metrics)
