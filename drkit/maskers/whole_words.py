"""Which words to hide: the references' greedy choice, for all texts of a batch at once.

Words in drawn order; a word is taken if the running token count stays within the budget, else skipped. Done
literally that is a loop over words. Here each pass takes, in every text, all open words up to the first that
would overshoot; that word is longer than what is left and so never fits again, and the longest open word
shrinks with each pass: there are at most as many passes as the longest word has tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.core.types import TokenBatch


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
