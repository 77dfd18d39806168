"""Batches of token ids: from a tokenizer's encoding, from rows of ids, and in groups of texts of similar length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drkit.core.types import TokenBatch
from drkit.data.special_tokens import special_ids
from drkit.data.spelling import looks_byte_level
from drkit.data.whole_words import WholeWords, read_offsets
from drkit.errors import DrkitError

# Smaller groups would not keep a processor busy.
_TOKENS_PER_GROUP = 1024
_SIMILAR_LENGTH = 0.85
# The special tokens of common models, for encodings that come without their tokenizer.
_BRACKETED = ("PAD", "UNK", "CLS", "SEP", "MASK", "BOS", "EOS")
_BARRED = ("endoftext", "padding", "im_start", "im_end", "begin_of_text", "end_of_text")
_SPECIAL_NAMES = (
    *(f"[{name}]" for name in _BRACKETED),
    *(f"<{name.lower()}>" for name in _BRACKETED),
    *(f"<|{name}|>" for name in _BARRED),
    "<s>",
    "</s>",
)
# Texts are padded to a multiple of so many tokens.
MULTIPLE = 16


def group_by_length(attention: Tensor) -> list[tuple[Tensor, int]]:
    """Cut a batch into groups of texts of similar length, longest first; attention bool[B,L], padded on the right.

    Returns the rows i64[n] of each group and the length that holds all its tokens. A group has at least 1,024 tokens,
    padding included, except the last.

    >>> attention = torch.arange(400) < torch.tensor([[400], [40], [400], [400], [30]])
    >>> [(rows.tolist(), length) for rows, length in group_by_length(attention)]
    [([0, 2, 3], 400), ([1, 4], 40)]
    """
    positions = torch.arange(1, attention.shape[1] + 1, device=attention.device)
    lengths, order = (positions * attention).amax(1).sort(descending=True, stable=True)
    starts, ends = [0], lengths.tolist()
    for row, length in enumerate(ends):
        longest = ends[starts[-1]]
        if length < longest * _SIMILAR_LENGTH and (row - starts[-1]) * longest >= _TOKENS_PER_GROUP:
            starts.append(row)
    return [(rows, max(ends[start], 1)) for rows, start in zip(order.tensor_split(starts[1:]), starts, strict=True)]


def padded(rows: Sequence[Any], pad_id: int, *, longest: int = 0) -> tuple[Tensor, Tensor]:
    """Pad rows of token ids on the right to a multiple of 16, at most `longest`: ids i64[B,L], attention i64[B,L].

    >>> ids, attention = padded([[5, 6], [7]], pad_id=0)
    >>> tuple(ids.shape), attention.sum(1).tolist()
    ((2, 16), [2, 1])
    """
    length = max(map(len, rows), default=1)
    width = -(-length // MULTIPLE) * MULTIPLE
    width = max(length, min(width, longest)) if longest else width
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    attention = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        attention[i, : len(row)] = 1
    return torch.from_numpy(ids), torch.from_numpy(attention)


def token_batch(
    encoding: Any,
    keys: Sequence[int] | None = None,
    signals: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
) -> TokenBatch:
    """Return the batch of a fast tokenizer's `BatchEncoding`, padded on the right.

    keys: permanent numbers of the examples, which their masks depend on; None: 0, 1, .., so that every batch draws the
    same masks: pass row numbers of your dataset. signals: what parts read of these texts, by name, such as
    `importance`: a tensor f32[B,L], or a list of f32[tokens] of each text, special tokens left out; values of tokens
    that were truncated are ignored. tokenizer: the one that made the encoding, whose special tokens are never maskable,
    not even where a text spells them ("[SEP]"); None: those around the texts, and the names that common models give
    theirs ([MASK], <mask>, ..).

    Raises DrkitError for a slow tokenizer (without word ids), padding on the left, or a signal for fewer tokens than a
    text has.
    """
    if not getattr(encoding, "is_fast", False):
        raise DrkitError("token_batch needs the output of a fast tokenizer (use_fast=True) for a list of texts")
    ids = torch.as_tensor(np.asarray(encoding["input_ids"]), dtype=torch.long)
    if ids.ndim != 2:
        raise DrkitError("token_batch expects the padded encoding of a list of texts: tokenizer(texts, padding=True)")
    attention = torch.as_tensor(np.asarray(encoding["attention_mask"])).bool()
    if not bool((attention.cummin(1).values == attention).all()):
        raise DrkitError("texts must be padded on the right: set tokenizer.padding_side = 'right'")
    words = torch.from_numpy(_word_numbers(encoding, tokenizer))
    numbers = torch.arange(len(ids)) if keys is None else torch.as_tensor(keys, dtype=torch.long)
    given = {name: _aligned_signal(name, values, encoding) for name, values in (signals or {}).items()}
    return TokenBatch(
        ids=ids, attention=attention, maskable=attention & (words >= 0), words=words, keys=numbers, signals=given
    )


def _aligned_signal(name: str, values: Any, encoding: Any) -> Tensor:
    """Return a signal as f32[B,L]; of a list, 0 for special tokens and padding."""
    if not isinstance(values, list):
        return torch.as_tensor(values, dtype=torch.float32)
    placed = torch.zeros(len(values), len(encoding["input_ids"][0]))
    for row, own in enumerate(values):
        at = [column for column, text in enumerate(encoding.sequence_ids(row)) if text is not None]
        if len(own) < len(at):
            raise DrkitError(f"the signal {name!r} has {len(own)} values for text {row}, which has {len(at)} tokens")
        placed[row, at] = torch.as_tensor(np.asarray(own[: len(at)]), dtype=torch.float32)
    return placed


def _word_numbers(encoding: Any, tokenizer: Any) -> NDArray[np.int64]:
    """Return the word i64[B,L] of each token, from 0 in each text, or -1."""
    ids, rows = np.asarray(encoding["input_ids"], dtype=np.int64), encoding.encodings
    given = np.array([[-1 if word is None else word for word in row.word_ids] for row in rows], dtype=np.int64)
    given = given.reshape(ids.shape)
    known, at, numbers = np.unique(ids, return_index=True, return_inverse=True)
    spelled = np.array([token for row in rows for token in row.tokens], dtype=object)
    tokens: list[str] = spelled[at].tolist()
    if tokenizer is None:
        is_special = np.isin(known, ids[given < 0]) | np.isin(tokens, _SPECIAL_NAMES)
        # Unknown characters have the name of the text that they stand for.
        is_special[numbers.ravel()[spelled != spelled[at][numbers.ravel()]]] = True
    else:
        is_special = np.isin(known, special_ids(tokenizer))
    inside = ~is_special[numbers.reshape(ids.shape)]
    texts = [row[own].tolist() for row, own in zip(spelled.reshape(ids.shape), inside, strict=True)]
    whole = WholeWords(tokens, np.flatnonzero(is_special).tolist(), byte_level=looks_byte_level(texts))
    gaps = np.concatenate([np.empty(0, dtype=bool), *(read_offsets(row)[0] for row in rows)])
    starts = np.arange(0, ids.size, max(ids.shape[1], 1))
    words = whole.number(numbers.ravel(), given.ravel(), gaps, starts).reshape(ids.shape)
    first = np.where(words < 0, ids.shape[1], words).min(axis=1, initial=ids.shape[1], keepdims=True)
    return np.where(words < 0, -1, words - first)
