"""The weights of words in passages, as arrays: `Postings`, of BM25 and of vectors that are scores of words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from drkit.search.vectors import SparseRows

# Scores to a group, of which the largest counts, in the first look for the best ones.
_GROUP = 32


@frozen(eq=False)
class Postings:
    """The weights of words in `count` passages: those of word w are the entries starts[w] to starts[w + 1].

    passages: i32[n], ascending for each word; weights: f32[n] or f16[n]; starts: i64[V+1].
    """

    passages: NDArray[Any]
    weights: NDArray[Any]
    starts: NDArray[Any]
    count: int

    @classmethod
    def of(cls, vectors: SparseRows, words: int) -> Postings:
        """Return the postings of sparse vectors over so many words; memory: about four times their bytes."""
        order = np.argsort(vectors.columns, kind="stable")
        starts = np.cumsum(np.bincount(vectors.columns + 1, minlength=words + 1))
        return cls(vectors.rows[order], vectors.values[order], starts, len(vectors))

    def split(self, count: int) -> tuple[Postings, NDArray[Any]]:
        """Return the postings without the first `count` words, which keep their numbers, and those as f[N,count]."""
        cut = int(self.starts[count])
        words = np.repeat(np.arange(count), np.diff(self.starts[: count + 1]))
        dense = np.zeros((self.count, count), dtype=self.weights.dtype)
        dense[self.passages[:cut], words] = self.weights[:cut]
        rest = Postings(self.passages[cut:], self.weights[cut:], np.maximum(self.starts - cut, 0), self.count)
        return rest, dense

    def scores(self, words: Sequence[int], factors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the sum of each passage's weights of these words, each times its factor, f32[N]."""
        total = np.zeros(self.count, dtype=np.float32)
        for word, factor in zip(words, factors, strict=True):
            begin, end = self.starts[word], self.starts[word + 1]
            total[self.passages[begin:end]] += self.weights[begin:end].astype(np.float32) * factor
        return total

    def scores_at(
        self, words: Sequence[int], factors: NDArray[np.float32], positions: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return what `scores` returns at these positions i64[n] (-1: NaN), without scoring the others."""
        total = np.zeros(len(positions), dtype=np.float32)
        sought = positions.astype(self.passages.dtype)
        for word, factor in zip(words, factors, strict=True):
            begin, end = self.starts[word], self.starts[word + 1]
            if begin == end:
                continue
            offsets = np.searchsorted(self.passages[begin:end], sought)
            within = np.minimum(begin + offsets, end - 1)
            found = (offsets < end - begin) & (self.passages[within] == sought)
            total += np.where(found, self.weights[within].astype(np.float32) * factor, np.float32(0))
        total[positions < 0] = math.nan
        return total


def best_positions(scores: NDArray[np.float32], depth: int) -> NDArray[np.int64]:
    """Return the positions i64[<=depth] of the largest positive scores f32[N], best first, ties by position.

    >>> best_positions(np.array([1, 0, 2, 1], dtype=np.float32), 2).tolist()
    [2, 0]
    """
    positions = np.flatnonzero(scores >= _reached(scores, depth))
    return positions[np.argsort(-scores[positions], kind="stable")[:depth]]


def _reached(scores: NDArray[np.float32], depth: int) -> np.float32:
    """Return a positive score that at least `depth` of the positive scores reach, or all, and not many more.

    Of the maxima of many groups, `depth` reach the one returned; to find it is a pass over all scores and a small sort.
    """
    least: np.float32 = np.nextafter(np.float32(0), np.float32(1))
    size = min(_GROUP, len(scores) // (2 * depth + 1))
    if size < 2:
        return least
    maxima = scores[: len(scores) // size * size].reshape(size, -1).max(axis=0)
    reached: np.float32 = np.partition(maxima, -depth)[-depth]
    return max(least, reached)
