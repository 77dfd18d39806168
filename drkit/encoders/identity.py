"""What the vectors and scores of a model depend on: hashes of its weights, its configuration and its tokenizer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import nn

from drkit.core.files import digest
from drkit.encoders.architectures import STATIC
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.encoders.token_weights import TokenWeights

# Keys of a config.json that no vector depends on: where a model comes from, how it was saved, what its classes are
# called, generation, and drkit's mark of a tied LM head. Any other key counts, also one that drkit does not know.
_NOT_COMPUTED = (
    *("architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "drkit_tied_lm_head"),
    *("finetuning_task", "id2label", "label2id", "problem_type", "sentence_transformers", "use_cache"),
)
# What decides the ids of a text in a tokenizer of transformers, besides its backend.
_TOKENIZER_OPTIONS = ("truncation_side", "split_special_tokens")


def model_identity(
    model: nn.Module,
    tokenizer: Any,
    token_weights: TokenWeights | None = None,
    learned_pooling: LearnedPooling | None = None,
) -> dict[str, str]:
    """Return hashes of all that a model and its tokenizer compute from: `weights`, `config` and `tokenizer`."""
    return {
        "weights": weights_hash(model, token_weights, learned_pooling),
        "config": config_hash(model.config),
        "tokenizer": tokenizer_hash(tokenizer),
    }


def weights_hash(
    model: nn.Module, token_weights: TokenWeights | None = None, learned_pooling: LearnedPooling | None = None
) -> str:
    """Hash a model's weights by name, shape and float32 value; the pooler is left out, since no vector uses it."""
    state = hashlib.blake2b(digest_size=16)
    extra = {} if token_weights is None else {"token_weights": token_weights.values()}
    if learned_pooling is not None:
        extra |= {f"pooling/{name}": value for name, value in learned_pooling.state_dict().items()}
    for name, value in sorted({**model.state_dict(), **extra}.items()):
        if not name.startswith("pooler."):
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() else value
            state.update(f"{name} {tuple(value.shape)}\n".encode())
            state.update(memoryview(value.contiguous().numpy()).cast("B"))
    return state.hexdigest()


def config_hash(config: Any) -> str:
    """Hash a configuration of transformers without the keys that no vector depends on.

    A value that is transformers' default counts as absent. A static encoder computes from its weights alone.
    """
    if config.model_type == STATIC:
        return digest({})
    default = type(config)().to_dict()
    found = {
        key: value
        for key, value in config.to_dict().items()
        if key not in _NOT_COMPUTED and not key.startswith("_") and (key not in default or value != default[key])
    }
    return digest({**found, "model_type": config.model_type})


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash how a tokenizer splits texts; padding and truncation are left out, since every caller sets them."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):
        content: Any = {**json.loads(backend.to_str()), "padding": None, "truncation": None}
    else:
        content = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    return digest([content, {name: getattr(tokenizer, name, None) for name in _TOKENIZER_OPTIONS}])
