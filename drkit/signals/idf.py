"""Inverse document frequencies: in how few texts each token occurs.

`idf(v) = log(N / df(v))`, with N texts, df(v) of which contain v (Sparck Jones 1972; CPDAE does not say which variant
its IDF-REC uses). A token that never occurs is counted once: its weight is the largest, log N, not infinity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drkit.core.protocols import SignalTexts
from drkit.core.spec import NoSettings
from drkit.data.arrays import Arrays, ArrayWriter
from drkit.data.counts import text_chunks
from drkit.data.store import TokenStore

_FILE = "frequencies.arrow"
_TOKENS_AT_ONCE = 1 << 22


class IdfSignal:
    """The signal `idf`, one f32 per vocabulary entry: log(texts / texts with it)."""

    def __init__(self, _config: NoSettings | None = None, _context: object = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def fit(self, texts: SignalTexts, folder: Path) -> Mapping[str, Any]:
        """Count the texts that contain each entry; return counts: texts, words (entries that occur)."""
        found = document_frequencies(texts.store, vocab_size=texts.vocab_size)
        with ArrayWriter(folder / _FILE, {"texts": np.int64}) as writer:
            writer.metadata = {"texts": len(texts.store)}
            writer.append(texts=found)
        return {"texts": len(texts.store), "words": int((found > 0).sum())}

    def values(self, _texts: SignalTexts, folder: Path) -> Iterator[NDArray[np.float32]]:
        """Yield the weights f32[V], from the counts that `fit` wrote to `folder`. Raises DrkitError without them."""
        arrays = Arrays(folder / _FILE)
        yield idf(arrays["texts"], texts=int(arrays.metadata["texts"])).numpy()


def document_frequencies(store: TokenStore, *, vocab_size: int) -> NDArray[np.int64]:
    """Return the number of texts in the store that contain each token, i64[vocab_size].

    Memory: a few arrays of 4 million numbers, or as long as the longest text, for a store of any size.
    Raises DrkitError if the store holds an id beyond `vocab_size`.
    """
    store.check_ids(vocab_size)
    found = np.zeros(vocab_size, dtype=np.int64)
    for first, last in text_chunks(store.offsets, _TOKENS_AT_ONCE):
        offsets = store.offsets[first : last + 1]
        ids = store.flat_ids[offsets[0] : offsets[-1]].astype(np.int64)
        texts = np.repeat(np.arange(last - first, dtype=np.int64), np.diff(offsets))
        pairs = np.unique(texts * vocab_size + ids)
        found += np.bincount(pairs % vocab_size, minlength=vocab_size)
    return found


def idf(frequencies: NDArray[np.int64], *, texts: int) -> Tensor:
    """Return log(texts / frequency) of every token, f32[V]; a frequency of 0 counts as 1.

    >>> idf(np.array([100, 10, 1, 0]), texts=100)
    tensor([0.0000, 2.3026, 4.6052, 4.6052])
    """
    return torch.from_numpy(np.log(max(texts, 1) / np.maximum(frequencies, 1))).float()
