"""The special tokens of a tokenizer, which no masker hides or draws, wherever they stand in a text.

Tokenizers of decoder-only models have no mask token; one of their other special tokens then stands for hidden tokens.
No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from drkit.core.files import read_json
from drkit.errors import DrkitError, did_you_mean

# The setting `encoder.mask_token` besides the name of a token, and the token that NEW adds.
AUTO, NEW = "auto", "new"
ADDED_TOKEN = "[MASK]"
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls")
# Words in the names of special tokens that have no meaning in texts, the best first.
_SPARE = ("mask", "unused", "reserved", "pad", "")
_ADVICE = "give the folder of a tokenizer"


def special_ids(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of all special tokens of a fast tokenizer, those without a role (`mask_token` ..) included."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return tuple(sorted(added.union(tokenizer.all_special_ids)))


def choose_mask_token(specials: Sequence[str], roles: Mapping[str, str | None], chosen: str = AUTO) -> str:
    """Return the token that stands for hidden tokens; specials: in the order of their ids, roles: by `mask_token` ...

    chosen: the name of a special token; `new`: a token is added to the vocabulary; `auto`: the mask token, or the first
    token that has no role, those first whose name says that they are spare.

    Raises DrkitError if the tokenizer has no such token.

    >>> choose_mask_token(["<s>", "</s>", "<repo>", "<reserved_0>"], {"bos_token": "<s>", "eos_token": "</s>"})
    '<reserved_0>'
    """
    if chosen == NEW:
        return ADDED_TOKEN
    if chosen != AUTO:
        if chosen not in specials:
            known = ", ".join(specials[:20]) + (", .." if len(specials) > 20 else "")
            raise DrkitError(
                f"{chosen!r} is not a special token of the tokenizer{did_you_mean(chosen, specials)} choose one of its "
                f"special tokens ({known or 'none'}), or {NEW!r}, which adds one to the vocabulary @ encoder.mask_token"
            )
        return chosen
    if mask := roles.get("mask_token"):
        return mask
    taken = {roles.get(f"{role}_token") for role in _ROLES}
    free = [token for token in specials if token not in taken]
    if not free:
        raise DrkitError(
            f"the tokenizer has neither a mask token nor a special token without a role, which could stand for hidden "
            f"tokens: --set encoder.mask_token={NEW} adds one to the vocabulary @ encoder.mask_token"
        )
    return next(token for word in _SPARE for token in free if word in token.lower())


def mask_token_in(folder: Path, chosen: str = AUTO) -> str | None:
    """Return the token that stands for hidden tokens, by the files of a tokenizer's folder; None without them.

    Raises DrkitError as `choose_mask_token` does.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    specials = _special_tokens(file, file.stat().st_mtime_ns)
    roles: dict[str, str | None] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        content = read_json(folder / name, _ADVICE) if (folder / name).is_file() else {}
        for key, value in content.items() if isinstance(content, dict) else ():
            if key.endswith("_token") and value:
                roles[key] = str(value.get("content") if isinstance(value, dict) else value)
    return choose_mask_token(specials, roles, chosen)


@lru_cache(maxsize=4)
def _special_tokens(file: Path, _changed: int) -> tuple[str, ...]:
    """Return the special tokens in a tokenizer.json, which may be large, in the order of their ids."""
    saved = read_json(file, _ADVICE)
    added = saved.get("added_tokens") or [] if isinstance(saved, dict) else []
    found = {int(one["id"]): str(one["content"]) for one in added if one.get("special")}
    return tuple(found[number] for number in sorted(found))
