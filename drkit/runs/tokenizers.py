"""Loading a tokenizer, with errors that say what to do."""

from __future__ import annotations

from typing import Any

from drkit.errors import DrkitError


def load_tokenizer(path_or_id: str) -> Any:
    """A fast tokenizer from a folder or hub id.

    Raises DrkitError where there is none, it is not a fast one (no word ids), or it lacks a mask token.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path_or_id)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DrkitError(f"cannot load the tokenizer of {path_or_id!r}: {reason}") from error
    if not tokenizer.is_fast:
        raise DrkitError(f"the tokenizer of {path_or_id!r} is no fast one: words cannot be told apart for masking")
    if tokenizer.mask_token_id is None:
        raise DrkitError(f"the tokenizer of {path_or_id!r} has no mask token, so nothing can be masked")
    return tokenizer
