"""Masked views of a batch, and the whole words that maskers choose from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from drkit.core.types import MaskedView, Views
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from drkit.core.draws import Draws
    from drkit.core.types import BuildContext, TokenBatch


@frozen(eq=False)
class Words:
    """The words of a batch. index i64[B,L]: a token's word, W where it is not maskable; sizes i64[B,W] in tokens."""

    index: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        """i64[B]: maskable tokens of each text."""
        counts: NDArray[np.int64] = self.sizes.sum(1)
        return counts

    def spread(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """[B,L]: a word's value chosen[B,W] at each of its tokens, zero (False) at all other places."""
        padded = np.concatenate([chosen, np.zeros((len(chosen), 1), dtype=chosen.dtype)], axis=1)
        return np.take_along_axis(padded, self.index, axis=1)


def find_words(tokens: TokenBatch) -> Words:
    """The words of maskable tokens, numbered from 0 in reading order whatever their numbers in `tokens.words`."""
    maskable, number = tokens.maskable.numpy(), tokens.words.numpy()
    starts = maskable.copy()
    starts[:, 1:] &= ~maskable[:, :-1] | (number[:, 1:] != number[:, :-1])
    index = np.cumsum(starts, axis=1) - 1
    most = int(index.max(initial=-1)) + 1
    index = np.where(maskable, index, most)
    places = index + np.arange(len(index))[:, None] * (most + 1)
    sizes = np.bincount(places.ravel(), minlength=len(index) * (most + 1)).reshape(len(index), most + 1)[:, :most]
    return Words(index=index, sizes=sizes)


def rounded_budget(counts: NDArray[np.int64], ratio: float) -> NDArray[np.int64]:
    """i64[B]: round(ratio * maskable tokens), at least 1."""
    rounded: NDArray[np.int64] = np.rint(counts * ratio).astype(np.int64)
    return np.maximum(1, rounded)


def choose_words(keys: NDArray[np.float32], sizes: NDArray[np.int64], budget: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[M,W]: the words that the greedy choice takes, in ascending order of keys f32[M,W].

    sizes i64[M,W] (0: no word); budget i64[M] in tokens. Where no word fits the budget, the shortest one is
    taken (the first such in order), so that every text with a word has something hidden.
    """
    order = np.argsort(np.where(sizes > 0, keys, np.float32(np.inf)), axis=1, kind="stable")
    taken = take_in_order(np.take_along_axis(sizes, order, axis=1), budget)
    chosen = np.zeros(sizes.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order, taken, axis=1)
    return chosen


def take_in_order(sizes: NDArray[np.int64], budget: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool[M,W]: the greedy choice among words that stand in order; as `choose_words`."""
    taken = np.zeros(sizes.shape, dtype=np.bool_)
    left, rows = budget.copy(), np.arange(len(sizes))
    while rows.size:
        open_ = ~taken[rows] & (sizes[rows] > 0) & (sizes[rows] <= left[rows, None])
        tokens = np.where(open_, sizes[rows], 0)
        fits = open_ & (np.cumsum(tokens, axis=1) <= left[rows, None])
        taken[rows] |= fits
        left[rows] -= np.where(fits, tokens, 0).sum(1)
        rows = rows[(open_ & ~fits).any(1) & (left[rows] > 0)]
    _take_shortest(taken, sizes)
    return taken


def _take_shortest(taken: NDArray[np.bool_], sizes: NDArray[np.int64]) -> None:
    rows = np.flatnonzero(~taken.any(1) & (sizes > 0).any(1))
    if rows.size:
        longer = np.iinfo(sizes.dtype).max
        taken[rows, np.where(sizes[rows] > 0, sizes[rows], longer).argmin(1)] = True


NO_TARGET = -100
SHARES = (0.8, 0.1, 0.1)  # BERT's: made [MASK], made random, kept


@frozen(eq=False)
class Corruption:
    """How hidden tokens are replaced: the mask id, the ids a random token is drawn from i64[V'], and the shares."""

    mask_id: int
    ordinary: NDArray[np.int64]
    shares: tuple[float, float, float]

    @classmethod
    def of(cls, context: BuildContext, shares: tuple[float, float, float]) -> Corruption:
        """The corruption for a context's vocabulary: special tokens are never drawn.

        Raises DrkitError where the context has no backbone.
        """
        backbone = context.backbone
        if backbone is None:
            raise DrkitError("a masker needs the mask id and vocabulary: build it with context_from(model, tokenizer)")
        # A model's embedding table may be longer than its vocabulary (padded to a round number).
        size = backbone.vocab if context.tokenizer is None else min(backbone.vocab, len(context.tokenizer))
        special = {backbone.mask_id, backbone.pad_id, *backbone.special_ids}
        ordinary = np.setdiff1d(np.arange(size), np.fromiter(special, dtype=np.int64))
        return cls(mask_id=backbone.mask_id, ordinary=ordinary, shares=shares)


def masked_view(tokens: TokenBatch, hidden: NDArray[np.bool_], rng: Draws, corruption: Corruption) -> MaskedView:
    """The view with hidden bool[B,L] replaced: each token made [MASK], made random, or kept, by its own draw."""
    coin = torch.from_numpy(rng.uniform(hidden.shape[1]))
    drawn = torch.from_numpy(corruption.ordinary[rng.integers(len(corruption.ordinary), hidden.shape[1])])
    chosen = torch.from_numpy(hidden)
    to_mask, to_random, _ = corruption.shares
    ids = torch.where(chosen & (coin < to_mask), corruption.mask_id, tokens.ids)
    ids = torch.where(chosen & (coin >= to_mask) & (coin < to_mask + to_random), drawn, ids)
    labels = torch.where(chosen, tokens.ids, NO_TARGET)
    return MaskedView(ids=ids, labels=labels, attention=tokens.attention)


def keep_targets(view: MaskedView, rows: Callable[[int], int], rng: Draws) -> MaskedView:
    """The view with fewer targets, drawn at random: `rows(n)` of a text's n targets; other labels become -100.

    rows: a decoder's own, so that a text gets the same targets whatever it is padded to.
    """
    targets = (view.labels != NO_TARGET).numpy()
    counts, which = np.unique(targets.sum(1), return_inverse=True)
    count = np.array([rows(int(n)) for n in counts])[which][:, None]
    keys = np.where(targets, rng.uniform(targets.shape[1]), np.float32(2))
    ranks = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1)
    kept = torch.from_numpy(targets & (ranks < count))
    return evolve(view, labels=torch.where(kept, view.labels, NO_TARGET))


def clean_view(tokens: TokenBatch, visible: Tensor) -> MaskedView:
    """The view of a decoder that wants rows: clean ids, every maskable token a target, visible bool[B,R,L]."""
    labels = torch.where(tokens.maskable, tokens.ids, NO_TARGET)
    return MaskedView(ids=tokens.ids, labels=labels, attention=tokens.attention, visible=visible)


def views_of(
    tokens: TokenBatch, from_encoder: Tensor, from_decoder: Tensor, rng: Draws, context: BuildContext, *, rows: int = 0
) -> Views:
    """Both views from what is hidden of each side: all that a masker of your own has to call.

    from_encoder bool[B,L]; from_decoder bool[B,L], or bool[B,rows,L] where each row hides its own. Hidden tokens are
    corrupted in BERT's shares; special tokens and padding are left alone whatever is asked.
    """
    corruption = Corruption.of(context, SHARES)
    encoder = masked_view(tokens, (from_encoder & tokens.maskable).numpy(), rng, corruption)
    if rows:
        hidden = from_decoder if from_decoder.ndim == 3 else from_decoder[:, None].expand(-1, rows, -1)
        decoder = clean_view(tokens, ~(hidden & tokens.maskable[:, None]) & tokens.attention[:, None])
    else:
        decoder = masked_view(tokens, (from_decoder & tokens.maskable).numpy(), rng, corruption)
    return Views(encoder=encoder, decoder=decoder, context=tokens)
