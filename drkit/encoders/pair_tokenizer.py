"""Query and passage as one sequence of tokens: `[CLS] query [SEP] passage [SEP]`, or however the tokenizer joins two.

The query is kept whole and the passage truncated. Each text is tokenised once, however many pairs it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int32]

MULTIPLE = 16
# Token ids, and their type ids.
Special = tuple[list[int], list[int]]


@frozen(eq=False)
class PairTokenizer:
    """Turns pairs of texts into token ids; picklable.

    backend: a `tokenizers.Tokenizer` that neither truncates nor pads. before, between, after: (ids, type ids) of the
    special tokens around the two texts. types: type ids of query and passage; None: the model has no token types.
    max_length: maximum tokens of a pair, special ones included. longest: number of positions of the model.
    """

    backend: Any
    before: Special
    between: Special
    after: Special
    types: tuple[int, int] | None
    pad_id: int
    max_length: int
    longest: int

    @classmethod
    def of(cls, tokenizer: Any, *, max_length: int, longest: int, types: bool) -> PairTokenizer:
        """Make one that joins texts as a fast tokenizer does. types: whether the model has token types.

        Raises DrkitError if the tokenizer puts nothing between two texts, or `max_length` leaves no room for text.
        """
        from tokenizers import Tokenizer

        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        backend.no_truncation()
        backend.no_padding()
        probe = backend.encode("a", "a")
        spans = _spans(probe)
        if spans is None:
            raise DrkitError(
                f"this {type(tokenizer).__name__} puts nothing between the two texts of a pair; add to its "
                f"tokenizer.json a post_processor for pairs, such as [CLS] $A [SEP] $B [SEP]"
            )
        first, end, second, last = spans
        before, between, after = (
            (probe.ids[a:b], probe.type_ids[a:b]) for a, b in ((0, first), (end, second), (last, None))
        )
        special = len(probe.ids) - (end - first) - (last - second)
        if max_length < special + 2:
            raise DrkitError(f"max_length {max_length} leaves no room for two texts; it must be at least {special + 2}")
        return cls(
            backend,
            before=before,
            between=between,
            after=after,
            types=(probe.type_ids[first], probe.type_ids[second]) if types else None,
            pad_id=int(tokenizer.pad_token_id or 0),
            max_length=max_length,
            longest=longest,
        )

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Tokenise each text to i32[n], truncated to `max_length`; equal texts are tokenised once."""
        unique = list(dict.fromkeys(texts))
        encodings = self.backend.encode_batch_fast(unique, add_special_tokens=False)
        ids = (np.array(encoding.ids[: self.max_length], dtype=np.int32) for encoding in encodings)
        by_text = dict(zip(unique, ids, strict=True))
        return [by_text[text] for text in texts]

    def lengths(self, queries: Sequence[Ids], passages: Sequence[Ids]) -> NDArray[np.int64]:
        """Return the number of tokens of each pair, i64[n]."""
        both = [len(query) + len(passage) for query, passage in zip(queries, passages, strict=True)]
        return np.minimum(np.array(both, dtype=np.int64) + self._special, self.max_length)

    def batch(self, queries: Sequence[Ids], passages: Sequence[Ids]) -> dict[str, Tensor]:
        """Join pairs into a batch, padded on the right: ids i64[B,L], attention bool[B,L], types i64[B,L] if any."""
        width = -(-int(self.lengths(queries, passages).max(initial=1)) // MULTIPLE) * MULTIPLE
        ids = np.full((len(queries), min(width, self.longest)), self.pad_id, dtype=np.int64)
        types, attention = np.zeros_like(ids), np.zeros(ids.shape, dtype=np.bool_)
        for row, (query, passage) in enumerate(zip(queries, passages, strict=True)):
            query = query[: self.max_length - self._special]
            passage = passage[: self.max_length - self._special - len(query)]
            joined = np.concatenate([self.before[0], query, self.between[0], passage, self.after[0]])
            ids[row, : len(joined)] = joined
            attention[row, : len(joined)] = True
            if self.types:
                types[row, : len(joined)] = self._types(len(query), len(passage))
        batch = {"ids": torch.from_numpy(ids), "attention": torch.from_numpy(attention)}
        return {**batch, "types": torch.from_numpy(types)} if self.types else batch

    @property
    def _special(self) -> int:
        return len(self.before[0]) + len(self.between[0]) + len(self.after[0])

    def _types(self, query: int, passage: int) -> NDArray[np.int64]:
        assert self.types is not None
        one, two = self.types
        return np.array([*self.before[1], *[one] * query, *self.between[1], *[two] * passage, *self.after[1]])


def joins_pairs(tokenizer: Any) -> bool:
    """Whether a fast tokenizer puts special tokens between the two texts of a pair."""
    return _spans(tokenizer.backend_tokenizer.encode("a", "a")) is not None


def _spans(pair: Any) -> tuple[int, int, int, int] | None:
    """Start and end of the two texts of an encoded pair; None if there is nothing between them."""
    sides = [-1 if side is None else side for side in pair.sequence_ids]
    if 0 not in sides or 1 not in sides:
        return None
    ends = [len(sides) - sides[::-1].index(side) for side in (0, 1)]
    spans = (sides.index(0), ends[0], sides.index(1), ends[1])
    return spans if spans[2] > spans[1] else None


def join_pairs(tokenizer: Any, *, types: bool) -> None:
    """Make a tokenizer of single texts join pairs as `[CLS] first [SEP] second [SEP]`, in place.

    Raises DrkitError if it has no [CLS] or [SEP].
    """
    from tokenizers.processors import TemplateProcessing

    cls, sep = tokenizer.cls_token, tokenizer.sep_token
    if cls is None or sep is None:
        raise DrkitError(
            f"this {type(tokenizer).__name__} has no [CLS] or no [SEP], so it cannot join a pair of texts; start from "
            f"the checkpoint of a masked LM"
        )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:{int(types)} {sep}:{int(types)}",
        special_tokens=[(cls, tokenizer.cls_token_id), (sep, tokenizer.sep_token_id)],
    )
