"""Query and passage as one sequence of tokens: `[CLS] query [SEP] passage [SEP]`, or what the tokenizer makes of two.

The query stands whole and the passage is cut to what is left. Each text is tokenised once, however many pairs it is in.
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
    """Pairs of texts to token ids; picklable.

    backend: a `tokenizers.Tokenizer` that neither cuts nor pads. before, between, after: (ids, type ids) of the special
    tokens round the two texts. types: the type ids of query and passage; None: the model has no token types.
    max_length: tokens of a pair at most, special ones included. longest: tokens that the model has positions for.
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
        """The way a fast tokenizer joins two texts. types: whether the model tells the two apart by token types.

        Raises DrkitError where it puts nothing between them, or `max_length` leaves no room for text.
        """
        from tokenizers import Tokenizer

        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        backend.no_truncation()
        backend.no_padding()
        probe = backend.encode("a", "a")
        spans = _spans(probe)
        if spans is None:
            raise DrkitError(
                f"this {type(tokenizer).__name__} puts nothing between the two texts of a pair: its tokenizer.json "
                f"needs a post_processor for pairs, such as [CLS] $A [SEP] $B [SEP]"
            )
        first, end, second, last = spans
        before, between, after = (
            (probe.ids[a:b], probe.type_ids[a:b]) for a, b in ((0, first), (end, second), (last, None))
        )
        special = len(probe.ids) - (end - first) - (last - second)
        if max_length < special + 2:
            raise DrkitError(f"max_length {max_length} leaves no room for two texts; take {special + 2} or more")
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
        """i32[n] of every text, cut at `max_length`; equal texts are tokenised once."""
        known = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        found = self.backend.encode_batch_fast(list(known), add_special_tokens=False)
        rows = [np.array(encoding.ids[: self.max_length], dtype=np.int32) for encoding in found]
        return [rows[known[text]] for text in texts]

    def lengths(self, queries: Sequence[Ids], passages: Sequence[Ids]) -> NDArray[np.int64]:
        """i64[n]: tokens of each pair."""
        both = [len(query) + len(passage) for query, passage in zip(queries, passages, strict=True)]
        return np.minimum(np.array(both, dtype=np.int64) + self._special, self.max_length)

    def batch(self, queries: Sequence[Ids], passages: Sequence[Ids]) -> dict[str, Tensor]:
        """A batch, padded on the right: ids i64[B,L], attention bool[B,L], types i64[B,L] where the model has them."""
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
        made = {"ids": torch.from_numpy(ids), "attention": torch.from_numpy(attention)}
        return {**made, "types": torch.from_numpy(types)} if self.types else made

    @property
    def _special(self) -> int:
        return len(self.before[0]) + len(self.between[0]) + len(self.after[0])

    def _types(self, query: int, passage: int) -> NDArray[np.int64]:
        assert self.types is not None
        one, two = self.types
        return np.array([*self.before[1], *[one] * query, *self.between[1], *[two] * passage, *self.after[1]])


def joins_pairs(tokenizer: Any) -> bool:
    """Whether a fast tokenizer puts something between the two texts of a pair."""
    return _spans(tokenizer.backend_tokenizer.encode("a", "a")) is not None


def _spans(pair: Any) -> tuple[int, int, int, int] | None:
    """Where the two texts of an encoded pair begin and end; None where nothing stands between them."""
    sides = [-1 if side is None else side for side in pair.sequence_ids]
    if 0 not in sides or 1 not in sides:
        return None
    ends = [len(sides) - sides[::-1].index(side) for side in (0, 1)]
    spans = (sides.index(0), ends[0], sides.index(1), ends[1])
    return spans if spans[2] > spans[1] else None


def join_pairs(tokenizer: Any, *, types: bool) -> None:
    """In place: from here on `[CLS] first [SEP] second [SEP]`, for a tokenizer that knows single texts only.

    Raises DrkitError where it has no such tokens.
    """
    from tokenizers.processors import TemplateProcessing

    cls, sep = tokenizer.cls_token, tokenizer.sep_token
    if cls is None or sep is None:
        raise DrkitError(
            f"this {type(tokenizer).__name__} has no [CLS] or no [SEP], so no pair of texts can be made of its tokens; "
            f"start from a masked LM's checkpoint"
        )
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:{int(types)} {sep}:{int(types)}",
        special_tokens=[(cls, tokenizer.cls_token_id), (sep, tokenizer.sep_token_id)],
    )
