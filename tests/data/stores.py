"""Token stores of any ids, and the importance of their tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from drkit.data.arrays import ArrayWriter
from drkit.data.counts import NgramCounts
from drkit.data.store import TOKENS_FILE, TokenStore
from drkit.signals.pmi import token_values


def store_of(texts: list[list[int]], folder: Path) -> TokenStore:
    with ArrayWriter(folder / TOKENS_FILE, {"ids": np.int32, "words": np.int16}, lists=True) as writer:
        writer.metadata = {"cls": 0, "sep": 1, "pad": 2, "specials": "0 1 2", "max_length": 64}
        flat = np.array([token for text in texts for token in text], dtype=np.int32)
        writer.append(np.array([len(text) for text in texts], dtype=np.int64), ids=flat, words=np.zeros(len(flat)))
    return TokenStore.open(folder)


def score(texts: list[list[int]], counts: NgramCounts, folder: Path) -> list[np.ndarray]:
    """The importance of texts by counts of other ones."""
    store = store_of(texts, folder)
    values = np.concatenate([np.empty(0, np.float32), *token_values(store, counts)])
    return np.split(values, store.offsets[1:-1]) if texts else []
