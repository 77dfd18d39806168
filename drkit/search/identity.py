"""What made a vector: the content of the weights and the settings, never a name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from drkit.errors import DrkitError

# What decides whether two vectors can be compared; lengths and prompts may differ between queries and passages.
COMPARABLE = ("weights", "pooling", "normalize")


def weights_hash(model: nn.Module) -> str:
    """Hash of a model's weights by name, shape and float32 value; a pooler, which no vector passes, is left out."""
    state = hashlib.blake2b(digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        if not name.startswith("pooler."):
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() else value
            state.update(f"{name} {tuple(value.shape)}\n".encode())
            state.update(memoryview(value.contiguous().numpy()).cast("B"))
    return state.hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash of how a tokenizer cuts texts; padding and truncation, which every caller sets, are left out."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        content: Any = sorted(tokenizer.get_vocab().items())
    else:
        content = {**json.loads(backend.to_str()), "padding": None, "truncation": None}
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def check_same_encoder(made_by: Mapping[str, Any] | None, encoder: Mapping[str, Any], what: str) -> None:
    """Raises DrkitError where vectors of `made_by` cannot be compared with those of `encoder`; None: nobody knows."""
    changed = [key for key in COMPARABLE if made_by is not None and made_by.get(key) != encoder.get(key)]
    if changed:
        raise DrkitError(
            f"{what} holds vectors of another encoder ({', '.join(changed)} differ): "
            f"search with the one it was made with, or encode the passages again"
        )
