"""From a fast tokenizer's output to a `TokenBatch`, for use in someone else's loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drkit.core.types import TokenBatch
from drkit.data.words import numbered, word_borders
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def token_batch(
    encoding: Any, keys: Sequence[int] | None = None, signals: Mapping[str, Any] | None = None
) -> TokenBatch:
    """The batch of a fast tokenizer's `BatchEncoding`, padded on the right.

    keys: the examples' permanent numbers, on which their masks depend; 0, 1, .. where None: give your own
    (a row number of the data set), or every batch draws the same masks. signals: what parts read of these
    texts, by name, such as `importance` f32[B,L].

    Raises DrkitError for a slow tokenizer (it has no word ids), or padding on the left.
    """
    if not getattr(encoding, "is_fast", False):
        raise DrkitError("whole words need a fast tokenizer's output (use_fast=True), of several texts")
    ids = torch.as_tensor(np.asarray(encoding["input_ids"]), dtype=torch.long)
    if ids.ndim != 2:
        raise DrkitError("token_batch takes the encoding of a list of texts, padded: tokenizer(texts, padding=True)")
    attention = torch.as_tensor(np.asarray(encoding["attention_mask"])).bool()
    if not bool((attention.cummin(1).values == attention).all()):
        raise DrkitError("texts must be padded on the right: set tokenizer.padding_side = 'right'")
    words = torch.from_numpy(np.stack([_words(encoding, row) for row in range(len(ids))]).reshape(ids.shape))
    numbers = torch.arange(len(ids)) if keys is None else torch.as_tensor(keys, dtype=torch.long)
    given = {name: torch.as_tensor(values, dtype=torch.float32) for name, values in (signals or {}).items()}
    return TokenBatch(
        ids=ids, attention=attention, maskable=attention & (words >= 0), words=words, keys=numbers, signals=given
    )


def _words(encoding: Any, row: int) -> NDArray[np.int64]:
    given = np.array([-1 if word is None else word for word in encoding.word_ids(row)], dtype=np.int64)
    before, after = word_borders(encoding.tokens(row))
    if not before.any():
        return given
    counted = numbered(given, np.zeros(1, dtype=np.int64), before, after)
    return np.where(given < 0, -1, counted - counted[given >= 0].min(initial=len(given)))
