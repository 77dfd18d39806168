"""Masked views of a batch, how hidden tokens are corrupted, and the whole words that maskers choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from numpy.typing import NDArray
from torch import Tensor

from drkit.core.draws import Draws
from drkit.core.types import BuildContext, MaskedView, TokenBatch
from drkit.errors import DrkitError
from drkit.maskers.specs import BERT_SHARES

NO_TARGET = -100
# Number of words that are put in order at once, so that they fit the second-level cache.
AT_ONCE = 2**16


def make_view(
    tokens: TokenBatch,
    hidden: Tensor,
    rng: Draws,
    context: BuildContext,
    *,
    rows: int = 0,
    nested: MaskedView | None = None,
) -> MaskedView:
    """Return a view, given the positions that it hides; the one function that your own masker has to call.

    hidden bool[B,L], or bool[B,rows,L] if each row hides its own; the tokens that `nested` hides are hidden, too. They
    are corrupted in BERT's shares; special tokens and padding are never hidden.
    """
    if nested is not None:
        earlier = hidden_tokens(nested)
        hidden = hidden | (earlier[:, None] if hidden.ndim == 3 else earlier)
    if not rows:
        return masked_view(tokens, (hidden & tokens.maskable).numpy(), rng, Corruption.of(context, BERT_SHARES))
    every = hidden if hidden.ndim == 3 else hidden[:, None].expand(-1, rows, -1)
    return clean_view(tokens, ~(every & tokens.maskable[:, None]) & tokens.attention[:, None])


def hidden_tokens(view: MaskedView) -> Tensor:
    """Return what a view without rows hides, bool[B,L]: its targets, or what a replacer fills.

    In a replacer's view every token is a target; it has a number to sample by at each hidden one.
    """
    return view.labels != NO_TARGET if view.noise is None else view.noise >= 0


def unmasked_view(tokens: TokenBatch) -> MaskedView:
    """Return the clean text as a view without targets, for a decoder that reads no view."""
    return MaskedView(ids=tokens.ids, labels=torch.full_like(tokens.ids, NO_TARGET), attention=tokens.attention)


@frozen(eq=False)
class Corruption:
    """How hidden tokens are replaced: the mask id, the ids i64[V'] of random tokens, and the shares."""

    mask_id: int
    ordinary: NDArray[np.int64]
    shares: tuple[float, float, float]

    @classmethod
    def of(cls, context: BuildContext, shares: tuple[float, float, float]) -> Corruption:
        """Return the corruption for a context's vocabulary; special tokens are never drawn.

        Raises DrkitError if the context has no backbone, or the tokenizer no mask token.
        """
        backbone = context.backbone
        if backbone is None:
            raise DrkitError("a masker needs the mask id and vocabulary; build it with context_from(model, tokenizer)")
        mask_id = backbone.require_mask_id()
        special = {mask_id, backbone.pad_id, *backbone.special_ids}
        ordinary = np.setdiff1d(np.arange(context.vocabulary_size), np.fromiter(special, dtype=np.int64))
        return cls(mask_id=mask_id, ordinary=ordinary, shares=shares)


def masked_view(tokens: TokenBatch, hidden: NDArray[np.bool_], rng: Draws, corruption: Corruption) -> MaskedView:
    """Return the view with hidden bool[B,L] corrupted: each token becomes [MASK], a random token, or is kept."""
    coin = torch.from_numpy(rng.uniform(hidden.shape[1]))
    drawn = torch.from_numpy(corruption.ordinary[rng.integers(len(corruption.ordinary), hidden.shape[1])])
    chosen = torch.from_numpy(hidden)
    to_mask, to_random, _ = corruption.shares
    ids = torch.where(chosen & (coin < to_mask), corruption.mask_id, tokens.ids)
    ids = torch.where(chosen & (coin >= to_mask) & (coin < to_mask + to_random), drawn, ids)
    labels = torch.where(chosen, tokens.ids, NO_TARGET)
    return MaskedView(ids=ids, labels=labels, attention=tokens.attention)


def keep_targets(view: MaskedView, rows: Callable[[int], int], rng: Draws) -> MaskedView:
    """Return the view with fewer targets, drawn at random: `rows(n)` of a text's n; the other labels become -100.

    rows: the decoder's method, called with the number of targets, so that padding does not change a text's targets.
    """
    targets = (view.labels != NO_TARGET).numpy()
    counts, which = np.unique(targets.sum(1), return_inverse=True)
    count = np.array([rows(int(n)) for n in counts])[which][:, None]
    keys = np.where(targets, rng.uniform(targets.shape[1]), np.float32(2))
    ranks = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1)
    kept = torch.from_numpy(targets & (ranks < count))
    return evolve(view, labels=torch.where(kept, view.labels, NO_TARGET))


def replaced_targets(view: MaskedView, tokens: TokenBatch) -> Tensor:
    """Return at which of its N targets a view differs from the text, bool[N]; a sample may equal the original."""
    return (view.ids != tokens.ids)[view.labels != -100]


def clean_view(tokens: TokenBatch, visible: Tensor) -> MaskedView:
    """Return a view with rows: clean ids, every maskable token a target, visible bool[B,R,L]."""
    labels = torch.where(tokens.maskable, tokens.ids, NO_TARGET)
    return MaskedView(ids=tokens.ids, labels=labels, attention=tokens.attention, visible=visible)


@frozen(eq=False)
class Words:
    """The words of a batch. index i64[B,L]: a token's word, W if it is not maskable; sizes i64[B,W]: in tokens."""

    index: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of maskable tokens in each text, i64[B]."""
        counts: NDArray[np.int64] = self.sizes.sum(1)
        return counts

    def inside(self, view: MaskedView) -> NDArray[np.bool_]:
        """Return the words bool[B,W] of which a view hides a token."""
        hidden = hidden_tokens(view).numpy()
        found = np.zeros((len(hidden), self.sizes.shape[1] + 1), dtype=np.bool_)
        rows, positions = np.nonzero(hidden)
        found[rows, self.index[rows, positions]] = True
        return found[:, :-1]

    def spread(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Return the value chosen[B,W] of each word at its tokens [B,L], and zero (False) at other positions."""
        padded = np.concatenate([chosen, np.zeros((len(chosen), 1), dtype=chosen.dtype)], axis=1)
        return np.take_along_axis(padded, self.index, axis=1)


def find_units(tokens: TokenBatch, unit: str = "word") -> Words:
    """Return the words of maskable tokens, numbered from 0 in reading order; with unit `token` each is a word."""
    maskable, number = tokens.maskable.numpy(), tokens.words.numpy()
    starts = maskable.copy()
    if unit == "word":
        starts[:, 1:] &= ~maskable[:, :-1] | (number[:, 1:] != number[:, :-1])
    index = np.cumsum(starts, axis=1) - 1
    most = int(index.max(initial=-1)) + 1
    index = np.where(maskable, index, most)
    bins = index + np.arange(len(index))[:, None] * (most + 1)
    sizes = np.bincount(bins.ravel(), minlength=len(index) * (most + 1)).reshape(len(index), most + 1)[:, :most]
    return Words(index=index, sizes=sizes)


def rounded_budget(counts: NDArray[np.int64], ratio: float) -> NDArray[np.int64]:
    """Return the number of tokens to hide, i64[B]: round(ratio * maskable tokens), at least 1."""
    rounded: NDArray[np.int64] = np.rint(counts * ratio).astype(np.int64)
    return np.maximum(1, rounded)


def choose_words(keys: NDArray[np.float32], sizes: NDArray[np.int64], budget: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the words bool[M,W] that a greedy choice in ascending order of keys f32[M,W] takes.

    sizes i64[M,W] (0: no word), both W and a size below 2**16; budget i64[M] in tokens. If no word fits the budget, the
    shortest one is taken (the first in order of several), so that at least one word is hidden in every text that has
    words.
    """
    chosen = np.zeros(sizes.shape, dtype=np.bool_)
    at_once = max(1, AT_ONCE // max(1, sizes.shape[1]))
    for at in range(0, len(sizes), at_once):
        some = slice(at, at + at_once)
        sizes_in_order, order = _in_order(keys[some], sizes[some])
        np.put_along_axis(chosen[some], order, choose_in_order(sizes_in_order, budget[some]), axis=1)
    return chosen


def _in_order(keys: NDArray[np.float32], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Return the sizes in ascending order of keys, words of size 0 last, and the number of each word, both [M,W].

    One sort of integers is many times faster than argsort: key, word and size in 32, 16 and 16 bits.
    """
    packed = np.where(sizes > 0, _ascending(keys), np.uint32(0xFFFFFFFF)).astype(np.uint64) << np.uint64(32)
    packed |= np.arange(sizes.shape[1], dtype=np.uint64) << np.uint64(16)
    packed |= sizes.astype(np.uint64)
    packed.sort(axis=1)
    return packed.astype(np.uint16).astype(np.int32), (packed >> np.uint64(16)).astype(np.uint16).astype(np.intp)


def _ascending(keys: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return integers in the order of keys (-inf to inf), below 2**32 - 1."""
    bits = np.ascontiguousarray(keys + np.float32(0)).view(np.uint32)  # + 0: -0.0 is 0.0
    return np.where(bits >> np.uint32(31), ~bits, bits | np.uint32(0x80000000))


def choose_in_order(sizes: NDArray[np.int32], budget: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the greedy choice bool[M,W] among words that are already in order; see `choose_words`."""
    taken = np.zeros(sizes.shape, dtype=np.bool_)
    left, rows = budget.copy(), np.arange(len(sizes))
    while rows.size:
        open_ = ~taken[rows] & (sizes[rows] > 0) & (sizes[rows] <= left[rows, None])
        tokens = np.where(open_, sizes[rows], 0)
        fits = open_ & (np.cumsum(tokens, axis=1) <= left[rows, None])
        taken[rows] |= fits
        left[rows] -= np.where(fits, tokens, 0).sum(1)
        rows = rows[(open_ & ~fits).any(1) & (left[rows] > 0)]
    untaken = np.flatnonzero(~taken.any(1) & (sizes > 0).any(1))
    if untaken.size:
        shortest = np.where(sizes[untaken] > 0, sizes[untaken], np.iinfo(sizes.dtype).max).argmin(1)
        taken[untaken, shortest] = True
    return taken
