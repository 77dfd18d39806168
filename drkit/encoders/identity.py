"""What the vectors of an encoder depend on: hashes of its weights and of its tokenizer."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import nn

from drkit.encoders.token_weights import TokenWeights


def weights_hash(model: nn.Module, token_weights: TokenWeights | None = None) -> str:
    """Hash a model's weights by name, shape and float32 value; the pooler is left out, since no vector uses it."""
    state = hashlib.blake2b(digest_size=16)
    extra = {} if token_weights is None else {"token_weights": token_weights.values()}
    for name, value in sorted({**model.state_dict(), **extra}.items()):
        if not name.startswith("pooler."):
            value = value.detach().cpu()
            value = value.float() if value.is_floating_point() else value
            state.update(f"{name} {tuple(value.shape)}\n".encode())
            state.update(memoryview(value.contiguous().numpy()).cast("B"))
    return state.hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """Hash how a tokenizer splits texts; padding and truncation are left out, since every caller sets them."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        content: Any = sorted(tokenizer.get_vocab().items())
    else:
        content = {**json.loads(backend.to_str()), "padding": None, "truncation": None}
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
