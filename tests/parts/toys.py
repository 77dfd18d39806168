"""What the tests of the parts share: real texts, a tiny WordPiece tokenizer trained on them, a tiny encoder."""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import logging
import pathlib
import textwrap
from functools import cache

from drkit.core.types import TokenBatch
from drkit.encoders import BertSizes, MaskedLmEncoder, token_batch

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@cache
def texts() -> tuple[str, ...]:
    """Docstrings of the standard library, in a fixed order."""
    found = []
    for module in (argparse, collections, inspect, json, logging, pathlib, textwrap):
        for _, member in sorted(vars(module).items()):
            for part in (member, *(vars(member).values() if inspect.isclass(member) else ())):
                text = inspect.getdoc(part) if callable(part) else None
                if text and len(text.split()) >= 8:
                    found.append(text)
    return tuple(dict.fromkeys(found))


@cache
def toy_tokenizer(vocab: int = 700):
    """Small on purpose: words fall into many pieces."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    trainer = BertWordPieceTokenizer()
    trainer.train_from_iterator(texts(), vocab_size=vocab, special_tokens=SPECIALS, show_progress=False)
    return BertTokenizerFast(tokenizer_object=trainer._tokenizer, model_max_length=512)


def toy_encoder(tokenizer, *, pooling: str = "cls", seed: int = 1, **sizes) -> MaskedLmEncoder:
    made = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 64, "max_positions": 160, "dropout": 0.0, **sizes}
    return MaskedLmEncoder.from_scratch(BertSizes(**made), tokenizer, pooling=pooling, seed=seed)


def toy_batch(tokenizer, chosen=None, *, max_length: int = 128, keys=None, **options) -> TokenBatch:
    chosen = list(texts()[:16] if chosen is None else chosen)
    encoding = tokenizer(chosen, truncation=True, max_length=max_length, **{"padding": True, **options})
    return token_batch(encoding, keys=range(len(chosen)) if keys is None else keys)
