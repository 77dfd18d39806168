"""Loading a tokenizer, with errors that say what to do, and saving it as it was loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drkit.errors import DrkitError

# transformers writes into a saved tokenizer how it was loaded; a run's files must not depend on that.
_OF_THE_LOADING = ("is_local", "local_files_only")


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
    for key in _OF_THE_LOADING:
        tokenizer.init_kwargs.pop(key, None)
    return tokenizer


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer without the padding and truncation of its last use, so that its files depend on no use."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    tokenizer.save_pretrained(folder)
