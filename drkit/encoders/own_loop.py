"""For a training loop of your own: what parts are built with, and token batches from a tokenizer's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from drkit.core.types import BuildContext, TokenBatch
from drkit.data.vocabulary import number_words, word_boundaries
from drkit.encoders.architectures import backbone_info
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def context_from(model: Any, tokenizer: Any, *, seed: int = 42) -> BuildContext:
    """Return the build context of a masked LM (Hugging Face's, or a `MaskedLmEncoder`) and its tokenizer.

    Raises DrkitError if the tokenizer has no mask token.
    """
    config = getattr(model, "config", None)
    if config is None:
        raise DrkitError(
            f"context_from expects a Hugging Face masked LM or a MaskedLmEncoder, got {type(model).__name__}"
        )
    return BuildContext(backbone=backbone_info(config, tokenizer), tokenizer=tokenizer, seed=seed)


def token_batch(
    encoding: Any, keys: Sequence[int] | None = None, signals: Mapping[str, Any] | None = None
) -> TokenBatch:
    """Return the batch of a fast tokenizer's `BatchEncoding`, padded on the right.

    keys: permanent numbers of the examples, which their masks depend on; None: 0, 1, .., so that every batch draws the
    same masks: pass row numbers of your dataset. signals: what parts read of these texts, by name, such as `importance`
    f32[B,L].

    Raises DrkitError for a slow tokenizer (without word ids), or padding on the left.
    """
    if not getattr(encoding, "is_fast", False):
        raise DrkitError("token_batch needs the output of a fast tokenizer (use_fast=True) for a list of texts")
    ids = torch.as_tensor(np.asarray(encoding["input_ids"]), dtype=torch.long)
    if ids.ndim != 2:
        raise DrkitError("token_batch expects the padded encoding of a list of texts: tokenizer(texts, padding=True)")
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
    before, after = word_boundaries(encoding.tokens(row))
    if not before.any():
        return given
    counted = number_words(given, np.zeros(1, dtype=np.int64), before, after)
    return np.where(given < 0, -1, counted - counted[given >= 0].min(initial=len(given)))
