"""Prompts, put before every text: do their tokens leave room for a text?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from drkit.errors import DrkitError


def check_prompt(prompt: str, tokenizer: Any, max_length: int) -> None:
    """Raise DrkitError if the tokens of a prompt leave no room for text in `max_length`, special tokens included."""
    count = len(tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]) if prompt else 0
    if count and count >= max_length - tokenizer.num_special_tokens_to_add():
        raise DrkitError(_no_room(prompt, count, max_length))


def prompt_problem(prompt: str, folder: Path, max_length: int) -> str | None:
    """Return why a prompt leaves no room for text in `max_length`, by the tokenizer.json of a folder, without torch.

    None if it leaves room, or the folder has no such file, or one that only transformers can explain.
    """
    file = folder / "tokenizer.json"
    if not prompt or not file.is_file():
        return None
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception:  # tokenizers raises nothing more specific; loading the encoder says what is wrong
        return None
    backend.no_truncation()
    count = len(backend.encode(prompt, add_special_tokens=False).ids)
    room = max_length - backend.num_special_tokens_to_add(is_pair=False)
    return _no_room(prompt, count, max_length) if count >= room else None


def _no_room(prompt: str, count: int, max_length: int) -> str:
    return (
        f"the prompt {prompt!r:.80} takes {count} tokens and leaves no room for text in {max_length}; "
        f"shorten it, or raise encoder.query_length or encoder.passage_length"
    )
