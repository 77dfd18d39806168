"""Texts as token ids, tokenised once and memory-mapped; batches are cut out of one flat array.

The store holds the content tokens and the word of each; [CLS], [SEP] and padding are added when a batch is made.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from attrs import frozen
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer
from torch import Tensor

from drkit.core.engine import Engine
from drkit.core.types import TokenBatch
from drkit.data.arrays import Arrays, ArrayWriter, SignalValues
from drkit.data.prompts import check_prompt
from drkit.data.rows import batched
from drkit.data.special_tokens import special_ids
from drkit.data.vocabulary import special_ids_around
from drkit.data.whole_words import WholeWords, number_words, separates_words
from drkit.errors import DrkitError

TOKENS_FILE = "tokens.arrow"
_TEXTS_AT_ONCE = 1024

Name = TypeVar("Name")


def tokenise(
    texts: Iterable[tuple[str, str]], tokenizer: Any, folder: Path, *, max_length: int, prompt: str = ""
) -> dict[str, int | float]:
    """Write the tokens of (id, text) pairs to `folder`, in order; memory stays flat.

    tokenizer: a fast tokenizer of transformers. Texts longer than `max_length` tokens ([CLS] and [SEP] included) are
    truncated, on the side that the tokenizer declares. prompt: put before every text; its tokens do not belong to a
    word, so pre-training never masks them.
    Returns counts: texts, tokens (kept), empty (texts), unknown_rate (share of tokens), and those of `count_truncated`.

    Raises DrkitError if the tokenizer is not fast, does not produce `[CLS] text [SEP]`, or cannot separate words, or
    if the prompt leaves no room for text.
    """
    lengths: Counter[int] = Counter()
    with TokenWriter(folder, tokenizer, max_length=max_length) as writer:
        room = max_length - tokenizer.num_special_tokens_to_add()
        prompt_tokens(prompt, tokenizer, max_length)
        for batch in batched(encode_texts(texts, tokenizer, prompt), _TEXTS_AT_ONCE):
            encodings = [encoding for _, _, encoding in batch]
            kept = [kept_tokens(len(encoding.ids), room, tokenizer) for encoding in encodings]
            words = writer.words.of_encodings(encodings, len(prompt))
            writer.append(
                [encoding.ids[part] for encoding, part in zip(encodings, kept, strict=True)],
                [own[part] for own, part in zip(words, kept, strict=True)],
            )
            lengths.update(len(encoding.ids) + max_length - room for encoding in encodings)
    counts = writer.counts
    return {
        "texts": counts["texts"],
        "tokens": counts["tokens"],
        **count_truncated(lengths, max_length),
        "empty": counts["empty"],
        "unknown_rate": counts["unknown"] / max(counts["tokens"], 1),
    }


def kept_tokens(count: int, room: int, tokenizer: Any) -> slice:
    """Return which of `count` tokens are kept where there is room for `room`, as the tokenizer truncates.

    A tokenizer with `truncation_side = "left"` keeps the last ones, any other the first ones.
    """
    return slice(max(count - room, 0), count) if tokenizer.truncation_side == "left" else slice(room)


def count_truncated(lengths: Mapping[int, int], max_length: int) -> dict[str, int]:
    """Count the texts longer than `max_length` tokens; also returns the longest and the 95th percentile of all lengths.

    lengths: number of texts by length in tokens, special ones included.

    >>> count_truncated({10: 95, 40: 4, 70: 1}, max_length=32)
    {'truncated': 5, 'longest': 70, 'p95': 10}
    """
    by_length, below, p95 = sorted(lengths.items()), 0, 0
    total = sum(lengths.values())
    for length, texts in by_length:
        if below < 0.95 * total:
            p95 = length
        below += texts
    truncated = sum(texts for length, texts in by_length if length > max_length)
    return {"truncated": truncated, "longest": max(lengths, default=0), "p95": p95}


def prompt_tokens(prompt: str, tokenizer: Any, max_length: int) -> list[int]:
    """Return the tokens of a prompt. Raises DrkitError if they leave no room for text in `max_length`."""
    check_prompt(prompt, tokenizer, max_length)
    ids: list[int] = next(encode_texts([("", prompt)], tokenizer))[2].ids if prompt else []
    return ids


class TokenWriter:
    """Writes a `TokenStore` to a folder, text by text; it appears there only if all succeeds.

    `words`: which tokens are whole words. `counts`: texts, tokens, empty (texts) and unknown (tokens) so far.
    """

    def __init__(self, folder: Path, tokenizer: Any, *, max_length: int) -> None:
        layout = _layout(tokenizer, max_length)
        columns = {"ids": np.int32, "words": np.int16 if max_length <= 2**15 else np.int32}
        self._writer = ArrayWriter(Path(folder) / TOKENS_FILE, columns, lists=True)
        self._writer.metadata = layout
        self._unknown = int(layout["unk"])
        self._specials = np.array(layout["specials"].split(), np.int32)
        self.words = WholeWords.of(tokenizer)
        self.counts = dict.fromkeys(("texts", "tokens", "empty", "unknown"), 0)

    def __enter__(self) -> TokenWriter:
        self._writer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)

    def append(self, ids: Sequence[Sequence[int]], words: Sequence[ArrayLike]) -> None:
        """Append texts: their content ids, and the word of each token as `words` numbers them, from any number."""
        lengths = np.array([len(text) for text in ids], dtype=np.int64)
        flat = np.array([token for text in ids for token in text], dtype=np.int32)
        given = np.concatenate([np.empty(0, np.int64), *(np.asarray(text, dtype=np.int64) for text in words)])
        numbers = number_words(given, (np.cumsum(lengths) - lengths)[lengths > 0])
        numbers[(given < 0) | np.isin(flat, self._specials)] = -1  # special tokens spelled out in a text are not words
        self._writer.append(lengths, ids=flat, words=numbers)
        self.counts["texts"] += len(lengths)
        self.counts["tokens"] += len(flat)
        self.counts["empty"] += int((lengths == 0).sum())
        self.counts["unknown"] += int((flat == self._unknown).sum())


def _layout(tokenizer: Any, max_length: int) -> dict[str, str]:
    """Return the tokenizer's properties that batches need, as the store keeps them."""
    if max_length < 3:
        raise DrkitError(f"max_length must be at least 3 ([CLS], a token, [SEP]), got {max_length}")
    if not getattr(tokenizer, "is_fast", False):
        raise DrkitError(f"{type(tokenizer).__name__} cannot separate words; use a fast tokenizer")
    before, after = special_ids_around(tokenizer)
    if len(before) > 1 or len(after) != 1 or tokenizer.pad_token_id is None:
        raise DrkitError(
            f"{type(tokenizer).__name__} does not produce '[CLS] text [SEP]' or 'text [SEP]', or has no padding token; "
            f"use the tokenizer of a masked LM"
        )
    if not separates_words(tokenizer):
        raise DrkitError(
            f"this {type(tokenizer).__name__} treats the whole text as a single word: its tokenizer.json neither "
            f"splits at spaces (pre_tokenizer) nor marks word starts; use another tokenizer, or add a pre_tokenizer"
        )
    return {
        "cls": "".join(map(str, before)),
        "sep": str(after[0]),
        "pad": str(tokenizer.pad_token_id),
        "unk": str(-1 if tokenizer.unk_token_id is None else tokenizer.unk_token_id),
        "specials": " ".join(map(str, special_ids(tokenizer))),
        "max_length": str(max_length),
    }


def encode_texts(
    texts: Iterable[tuple[Name, str]], tokenizer: Any, prompt: str = ""
) -> Iterator[tuple[Name, str, Any]]:
    """Yield (name, text, encoding) of (name, text) pairs; encodings have no special tokens and are not truncated.

    Texts are read in batches, for which the library uses all cores. prompt: put before every text.
    """
    # After a fork the library uses one core unless this is set; an existing setting is kept.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    for batch in batched(texts, _TEXTS_AT_ONCE):
        encodings = backend.encode_batch([prompt + text for _, text in batch], add_special_tokens=False)
        yield from ((*pair, encoding) for pair, encoding in zip(batch, encodings, strict=True))


class TokenStore:
    """Tokenised texts, by index; picklable and safe to fork (each process maps the file itself).

    flat_ids i32[tokens]: the content tokens of all texts. flat_words: the word of each token, or -1. offsets
    i64[texts + 1]: where each text starts.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._arrays = Arrays(self.path)
        self.offsets = self._arrays.offsets("ids")
        self.flat_ids: NDArray[np.int32] = self._arrays["ids"]
        self.flat_words: NDArray[np.signedinteger[Any]] = self._arrays["words"]
        metadata = self._arrays.metadata
        self.max_length = int(metadata["max_length"])
        self.sep_id, self.pad_id = int(metadata["sep"]), int(metadata["pad"])
        self._before = np.array([int(metadata["cls"])] if metadata["cls"] else [], dtype=np.int32)
        self.special_ids = tuple(map(int, metadata["specials"].split()))

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """Open the store that `tokenise` wrote to `folder`. Raises DrkitError if it is missing."""
        return cls(Path(folder) / TOKENS_FILE)

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Path]]:
        return TokenStore, (self.path,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The number of tokens i32[n] of each text, [CLS] and [SEP] included."""
        return (np.diff(self.offsets) + len(self._before) + 1).astype(np.int32)

    def check_ids(self, vocab_size: int) -> None:
        """Raise DrkitError if the store has an id beyond a vocabulary."""
        highest = int(self.flat_ids.max(initial=-1))
        if highest >= vocab_size:
            raise DrkitError(f"the store has token id {highest}, but a vocabulary of {vocab_size}; tokenise it again")

    def tokens(self, index: int) -> NDArray[np.int32]:
        """Return the token ids i32[L] of one text, [CLS] and [SEP] included."""
        content = self.flat_ids[self.offsets[index] : self.offsets[index + 1]]
        return np.concatenate([self._before, content, [self.sep_id]]).astype(np.int32)

    def batch(
        self, indices: ArrayLike, *, pad_to: int | None = None, signals: Mapping[str, SignalValues] | None = None
    ) -> TokenBatch:
        """Return the texts at these indices, padded on the right to the longest; `keys` are the indices.

        pad_to: round the length up to a multiple of this number, at most `max_length`: few shapes, steady memory.
        signals: values of this store's tokens or texts for the batch to carry, by name. Raises IndexError for an index
        outside the store.
        """
        rows = self._rows(indices, pad_to)
        ids, attention = self._padded(rows)
        words = rows.scatter(self.flat_words, -1, np.int64)
        carried = {name: rows.lay_out(given) for name, given in (signals or {}).items()}
        return TokenBatch(
            ids=ids,
            attention=attention,
            maskable=torch.from_numpy(words >= 0),
            words=torch.from_numpy(words),
            keys=torch.from_numpy(rows.keys),
            signals={name: torch.from_numpy(values) for name, values in carried.items()},
        )

    def padded(self, indices: ArrayLike, *, pad_to: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the ids i64[B,L] and the attention bool[B,L] of `batch`, without the rest."""
        return self._padded(self._rows(indices, pad_to))

    def _rows(self, indices: ArrayLike, pad_to: int | None) -> TokenRows:
        keys = np.asarray(indices, dtype=np.int64)
        return TokenRows(keys, self.offsets, before=len(self._before), pad_to=pad_to, longest=self.max_length)

    def _padded(self, rows: TokenRows) -> tuple[Tensor, Tensor]:
        ids = rows.scatter(self.flat_ids, self.pad_id, np.int64)
        ids[:, : len(self._before)] = self._before
        np.put_along_axis(ids, rows.ends[:, None], self.sep_id, axis=1)
        return torch.from_numpy(ids), torch.from_numpy(np.arange(rows.width) <= rows.ends[:, None])


class TokenRows:
    """Where the tokens of some texts go in a padded matrix: `before` columns ([CLS]), then the content, then [SEP].

    keys i64[B]: the indices of the texts; a text is `offsets[key]` to `offsets[key + 1]` of a flat array. ends i64[B]:
    the column of [SEP]; width: L. Raises IndexError for an index outside the store.
    """

    def __init__(
        self, keys: NDArray[np.int64], offsets: NDArray[np.int64], *, before: int, pad_to: int | None, longest: int
    ) -> None:
        if len(keys) and (keys.min() < 0 or keys.max() >= len(offsets) - 1):
            raise IndexError(
                f"indices {keys.min()} to {keys.max()} are out of range for a store of {len(offsets) - 1} texts"
            )
        starts = offsets[keys]
        lengths = offsets[keys + 1] - starts
        width = int(lengths.max(initial=0)) + before + 1
        if pad_to:
            width = max(width, min(-(-width // pad_to) * pad_to, longest))
        self.keys, self.ends, self.width = keys, lengths + before, width
        columns = np.arange(width)
        self._inside = (columns >= before) & (columns < self.ends[:, None])
        self._sources = (starts[:, None] - before + columns)[self._inside]

    def scatter(self, flat: NDArray[Any], fill: float, dtype: type[np.generic]) -> NDArray[Any]:
        """Copy the texts' values from `flat`, [n] or [n, K], to [B, L] or [B, L, K] filled with `fill`."""
        out = np.full((*self._inside.shape, *flat.shape[1:]), fill, dtype)
        out[self._inside] = flat[self._sources]
        return out

    def lay_out(self, signal: SignalValues) -> NDArray[np.float32]:
        """Return a signal's values for these texts: f32[B,L(,K)] of tokens, f32[B(,K)] of texts."""
        if signal.scope == "token":
            return self.scatter(signal.values, 0.0, np.float32)
        return np.asarray(signal.values[self.keys], dtype=np.float32)


@frozen(eq=False)
class StoredTexts:
    """The texts that a signal is computed for.

    store: their tokens. tokenizer: the tokenizer that made the store. vocab_size: rows of the encoder's embedding
    matrix, which may exceed the tokenizer's vocabulary; 0 if the signal has no values per entry. characters: the texts
    in the order of the store, without `prompt`; None if only their tokens are kept (candidate queries), which are then
    decoded. engine, scratch: see `SignalTexts`. names: their ids, as `characters`; None: their numbers.
    """

    store: TokenStore
    tokenizer: Any
    vocab_size: int
    characters: Callable[[], Iterable[str]] | None = None
    prompt: str = ""
    engine: Engine | None = None
    scratch: Path | None = None
    names: Callable[[], Iterable[str]] | None = None

    def __len__(self) -> int:
        return len(self.store)

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield the (id, text) of each text, in the order of the store; only of texts whose characters are kept.

        Raises DrkitError if the signal's spec does not require `characters`.
        """
        if self.characters is None:
            raise DrkitError("this signal reads characters: add requires=('characters',) to its spec")
        names = self.names() if self.names else map(str, range(len(self)))
        yield from zip(names, self.characters(), strict=True)

    def read(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Stream (text, i64[tokens,2]: start and end of each content token in it), in the order of the store.

        Tokens of the prompt have (0, 0). Raises DrkitError if the texts are not those of the store, or the signal's
        spec does not require `characters`.
        """
        if self.tokenizer is None:
            raise DrkitError("this signal reads characters: add requires=('characters',) to its spec")
        return _decode(self) if self.characters is None else _read(self, self.characters())


def _read(texts: StoredTexts, characters: Iterable[str]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    store, count = texts.store, 0
    for index, text, encoding in encode_texts(enumerate(characters), texts.tokenizer, texts.prompt):
        kept = int(store.offsets[index + 1] - store.offsets[index]) if index < len(store) else -1
        if not 0 <= kept <= len(encoding.ids):
            raise DrkitError(
                f"text {index} differs from the one in the token store {store.path}; tokenise the texts again"
            )
        part = kept_tokens(len(encoding.ids), kept, texts.tokenizer)
        spans = np.array(encoding.offsets[part], dtype=np.int64).reshape(-1, 2)
        yield text, np.maximum(spans - len(texts.prompt), 0)
        count = index + 1
    if count != len(store):
        raise DrkitError(
            f"got {count} texts, but the token store {store.path} has {len(store)}; tokenise the texts again"
        )


def _decode(texts: StoredTexts) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield the texts decoded from their tokens, with a space before each word."""
    store, words = texts.store, WholeWords.of(texts.tokenizer)
    for first, last in pairwise(store.offsets.tolist()):
        yield words.spell(store.flat_ids[first:last].tolist(), store.flat_words[first:last].tolist())
