"""The special tokens of a tokenizer, which no masker hides or draws, wherever they stand in a text."""

from __future__ import annotations

from typing import Any


def special_ids(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of all special tokens of a fast tokenizer, those without a role (`mask_token` ..) included."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return tuple(sorted(added.union(tokenizer.all_special_ids)))
