"""What the tokens of any vocabulary spell: their bytes and their text.

Byte-level vocabularies (GPT-2's, RoBERTa's) write each byte as a symbol of its own, SentencePiece's a space as
WORD_START and bytes without a token as <0xE6>, WordPiece's a token within a word with ##.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

from tokenizers import pre_tokenizers

WORD_START = "\u2581"  # the space of SentencePiece vocabularies
_BYTE = re.compile("<0x([0-9A-F]{2})>")


@cache
def _byte_symbols() -> dict[str, int]:
    """Return the byte of each symbol of byte-level vocabularies; bytes that UTF-8 never has are left out."""
    leads = (*range(0x1000, 0x10000, 0x1000), *range(0x10000, sys.maxunicode, 0x40000), sys.maxunicode)
    text = "".join(map(chr, chain(range(0x801), (code for code in leads if not 0xD800 <= code < 0xE000))))
    ((symbols, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return dict(zip(symbols, text.encode(), strict=True))


def is_byte_level(tokenizer: Any) -> bool:
    """Return whether the tokens of a fast tokenizer are spelled in symbols for bytes, as GPT-2's are."""
    backend, text = tokenizer.backend_tokenizer, "\u6f22"
    normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
    split = backend.pre_tokenizer.pre_tokenize_str(normal) if backend.pre_tokenizer else [(normal, (0, 1))]
    symbols = "".join(piece for piece, _ in split)
    return text not in symbols and _bytes_of(symbols).endswith(text.encode())


def looks_byte_level(texts: Iterable[Sequence[str]]) -> bool:
    """Return whether the tokens of texts are spelled in symbols for bytes, judged by the tokens alone."""
    spelled = ["".join(tokens) for tokens in texts]
    if all(map(str.isascii, spelled)) or not set().union(*spelled) <= _byte_symbols().keys():
        return False
    # The last character of a truncated text may be incomplete.
    return not any("\ufffd" in _bytes_of(one).decode(errors="replace").rstrip("\ufffd") for one in spelled)


def _bytes_of(symbols: str) -> bytes:
    """Return the bytes that symbols stand for; UTF-8 of a token that has other characters, such as an added one."""
    known = _byte_symbols()
    return bytes(known[symbol] for symbol in symbols) if set(symbols) <= known.keys() else symbols.encode()


def token_bytes(token: str, *, byte_level: bool = False) -> bytes:
    r"""Return the UTF-8 bytes of the text that a token stands for, with the space before it if the token has one.

    >>> token_bytes("\u2581caf\u00e9"), token_bytes("<0xE6>"), token_bytes("\u0120a", byte_level=True)
    (b' caf\xc3\xa9', b'\xe6', b' a')
    """
    if byte_level:
        return _bytes_of(token)
    if found := _BYTE.fullmatch(token):
        return bytes([int(found[1], 16)])
    token = token.removeprefix("##") if len(token) > 2 else token
    return token.removesuffix("</w>").replace(WORD_START, " ").encode()


def token_text(tokenizer: Any, token: int) -> str:
    """Return the text of a token without the space before it, or its bytes (<E6 BC>) if they end in mid-character."""
    text: str = tokenizer.decode([token]).strip()
    if "\ufffd" not in text:
        return text
    spelled = token_bytes(tokenizer.convert_ids_to_tokens(token), byte_level=is_byte_level(tokenizer))
    return f"<{spelled.hex(' ').upper()}>"
