"""A WordPiece vocabulary trained on the texts themselves; the same texts give the same vocabulary.

The trainer numbers single characters as its hash tables happen to list them, and breaks ties between merges by these
numbers. So the characters are counted here and handed over in a fixed order.
"""

from __future__ import annotations

import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drkit.errors import DrkitError

_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Rare scripts would fill a small vocabulary with single characters.
_ALPHABET = 200
_SMALLEST = 100


def train_wordpiece(texts: Iterator[str], folder: Path, *, size: int, lowercase: bool = True) -> Any:
    """Train a BERT tokenizer of at most `size` entries on `texts`, save it to `folder` and return it.

    `AutoTokenizer.from_pretrained(folder)` loads it as a fast tokenizer that makes `[CLS] text [SEP]`. Characters
    beyond the most frequent ones become [UNK]. WordPiece: Schuster and Nakajima 2012; trained as byte-pair merges.

    Raises DrkitError where `size` is too small, or the texts have no words.
    """
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    if size < _SMALLEST:
        raise DrkitError(f"a vocabulary of {size} entries is too small; take {_SMALLEST} or more")
    trainer = BertWordPieceTokenizer(lowercase=lowercase)
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "texts"
        alphabet = _alphabet(_spooled(texts, lines), trainer.normalizer, min(_ALPHABET, size // 4))
        if not alphabet:
            raise DrkitError("no vocabulary can be trained: the texts have no words")
        trainer.train(
            str(lines),
            vocab_size=size,
            min_frequency=2,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            special_tokens=[*_SPECIALS, *alphabet, *(f"##{c}" for c in alphabet if _within_words(c))],
            show_progress=False,
        )
    tokenizer = BertTokenizerFast(vocab=trainer.get_vocab(), do_lower_case=lowercase)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _spooled(texts: Iterator[str], path: Path) -> Counter[str]:
    """Write the texts to a file, a line each, and count their characters."""
    characters: Counter[str] = Counter()
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for text in texts:
            line = " ".join(text.split())
            characters.update(line)
            file.write(line + "\n")
    return characters


def _within_words(character: str) -> bool:
    """Whether BERT's pre-tokenizer leaves it in a word: it splits at Unicode punctuation and ASCII signs."""
    return character.isalnum() or (not character.isascii() and unicodedata.category(character)[0] != "P")


def _alphabet(characters: Counter[str], normalizer: Any, size: int) -> list[str]:
    """The `size` most frequent characters as the tokenizer sees them, in a fixed order."""
    seen: Counter[str] = Counter()
    for character, number in characters.items():
        for normal in normalizer.normalize_str(character).split():
            seen.update(dict.fromkeys(normal, number))
    return sorted(sorted(seen, key=lambda c: (-seen[c], c))[:size])
