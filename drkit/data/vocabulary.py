"""A WordPiece vocabulary trained on the texts themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drkit.errors import DrkitError

_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Rare scripts would fill a small vocabulary with single characters.
_ALPHABET = 200
_SHORTEST = 100


def train_wordpiece(texts: Iterator[str], folder: Path, *, size: int, lowercase: bool = True) -> Any:
    """Train a BERT tokenizer of at most `size` entries on `texts`, save it to `folder` and return it.

    `AutoTokenizer.from_pretrained(folder)` loads it as a fast tokenizer that makes `[CLS] text [SEP]`. The same
    texts give the same file. Pieces that occur once are left out. WordPiece: Schuster and Nakajima 2012.

    Raises DrkitError where `size` is too small, or the texts have no words.
    """
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    if size < _SHORTEST:
        raise DrkitError(f"a vocabulary of {size} entries is too small; take {_SHORTEST} or more")
    trainer = BertWordPieceTokenizer(lowercase=lowercase, strip_accents=None)
    trainer.train_from_iterator(
        texts,
        vocab_size=size,
        min_frequency=2,
        limit_alphabet=min(_ALPHABET, size // 4),
        special_tokens=list(_SPECIALS),
        show_progress=False,
    )
    vocabulary = trainer.get_vocab()
    if len(vocabulary) <= len(_SPECIALS):
        raise DrkitError("no vocabulary can be trained: the texts have no words")
    tokenizer = BertTokenizerFast(vocab=vocabulary, do_lower_case=lowercase)
    tokenizer.save_pretrained(folder)
    return tokenizer
