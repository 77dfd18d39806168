"""Queries without a model: the spans of a text that tell most, by the importance (PMI) of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from drkit.data.signals import SignalValues
    from drkit.data.store import TokenStore

# What two chosen spans may share: a quarter of the shorter.
_OVERLAP = 4

Range = tuple[int, int]


def extractive_queries(
    store: TokenStore, importance: SignalValues, places: ArrayLike | None = None, *, count: int = 5, length: int = 12
) -> Iterator[list[Range]]:
    """For each text the `count` spans with the highest mean importance, best first, as ranges of `store.flat_ids`.

    A span is a run of whole words, as many as fit `length` tokens (fewer than half of that only where no other is); two
    spans of a text share at most a quarter of the shorter one, so short texts have fewer. An empty text has one, which
    is empty. places: which texts, all where None.

        for ranges in extractive_queries(store, importance):
            print([tokenizer.decode(store.flat_ids[start:stop]) for start, stop in ranges])
    """
    for place in np.arange(len(store)) if places is None else np.asarray(places, dtype=np.int64):
        start, stop = (int(offset) for offset in store.offsets[place : place + 2])
        if start == stop:
            yield [(start, stop)]
            continue
        windows = _longer(word_windows(store.flat_words[start:stop], length), length)
        sums = np.concatenate([[0.0], np.cumsum(importance.values[start:stop], dtype=np.float64)])
        means = (sums[windows[:, 1]] - sums[windows[:, 0]]) / np.diff(windows, axis=1)[:, 0]
        yield [(start + a, start + b) for a, b in best_windows(windows, means, count).tolist()]


def _longer(windows: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """The windows of half of `length` tokens or more, all where there is none: few tokens have extreme means."""
    long = 2 * (windows[:, 1] - windows[:, 0]) >= length
    return windows[long] if long.any() else windows


def word_windows(words: NDArray[np.signedinteger], length: int) -> NDArray[np.int64]:
    """i64[n,2]: every run of whole words of at most `length` tokens to which no word can be added on either side.

    words: the word of each token. A word of more than `length` tokens counts with its first ones.

    >>> word_windows(np.array([0, 0, 1, 2, 2, 2]), 4).tolist()
    [[0, 3], [2, 6]]
    """
    begins = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]]))
    borders = np.append(begins, len(words))
    ends = borders[np.searchsorted(borders, begins + length, side="right") - 1]
    ends = np.maximum(ends, np.minimum(begins + length, borders[1:]))
    grows = np.concatenate([[True], ends[1:] > ends[:-1]])
    windows: NDArray[np.int64] = np.stack([begins, ends], axis=1)[grows]
    return windows


def best_windows(windows: NDArray[np.int64], scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """i64[<=count,2]: the windows of highest score, best first, none sharing more than a quarter with a better one."""
    sizes = windows[:, 1] - windows[:, 0]
    left = np.asarray(scores, dtype=np.float64).copy()
    chosen: list[int] = []
    while len(chosen) < count and np.isfinite(left).any():
        best = int(np.argmax(left))
        chosen.append(best)
        shared = np.minimum(windows[:, 1], windows[best, 1]) - np.maximum(windows[:, 0], windows[best, 0])
        left[shared * _OVERLAP > np.minimum(sizes, sizes[best])] = -np.inf
    return windows[chosen]
