"""Hide the tokens that carry the most information.

How much a token carries is the signal `importance`, which a stage computes beforehand; its formula, the averaged PMI of
a token with the n-grams around it, is in `drkit/signals/pmi.py`, and the counts of n-grams in `drkit/data/counts.py`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from drkit.core.draws import Draws
from drkit.core.types import BuildContext, MaskedView, TokenBatch
from drkit.errors import DrkitError
from drkit.maskers.specs import PmiConfig
from drkit.maskers.views import Corruption, Words, choose_words, clean_view, find_units, masked_view


class PmiMasker:
    """Hides the k most important tokens after Gaussian noise.

    t_i ~ Normal(importance_i, sigma), and the k = floor(ratio * maskable tokens), at least 1 unless the ratio is 0,
    with the largest t are hidden; those that an earlier view hides (`nested`) come first. With `unit = "word"` a word's
    importance is the mean over its tokens, and words are taken whole, as long as they fit k. With `rows` every row
    draws its own noise and hides its own k tokens.

    Source: CDMAE section 3.2; importance is its averaged pointwise mutual information (the signal `importance`).
    """

    def __init__(self, config: PmiConfig, context: BuildContext) -> None:
        self.config = config
        self.corruption = Corruption.of(context, config.mask_token_share)

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0, nested: MaskedView | None = None) -> MaskedView:
        """Return a view of a batch; `rows` > 0: a visibility pattern bool[B,rows,L].

        Raises DrkitError if the batch has no importance, or a value is not finite.
        """
        importance, words = tokens.signal("importance").numpy(), find_units(tokens, self.config.unit)
        if not np.isfinite(importance).all():
            raise DrkitError(
                "the importance of some token is not finite; compute the PMI statistics of this corpus again"
            )
        chosen = self._chosen(words, importance, rng, max(1, rows), None if nested is None else words.inside(nested))
        if rows:
            return clean_view(tokens, torch.from_numpy(~chosen & tokens.attention.numpy()[:, None]))
        return masked_view(tokens, chosen[:, 0], rng, self.corruption)

    def _chosen(
        self, words: Words, importance: NDArray[np.float32], rng: Draws, rows: int, given: NDArray[np.bool_] | None
    ) -> NDArray[np.bool_]:
        """Return the tokens that each row hides, bool[B,R,L]."""
        if self.config.unit == "word":
            noisy = self._noisy(mean_over_words(words, importance), rng, rows)
            return self._whole_words(words, noisy, given)
        maskable = words.index < words.sizes.shape[1]
        noisy = self._noisy(np.where(maskable, importance, np.float32(-np.inf)), rng, rows)
        if given is not None:
            noisy[np.broadcast_to(words.spread(given)[:, None], noisy.shape)] = np.inf
        return largest(noisy, self._budget(words, given))

    def _whole_words(
        self, words: Words, noisy: NDArray[np.float32], given: NDArray[np.bool_] | None
    ) -> NDArray[np.bool_]:
        """Return whole words in order of noisy importance f32[B,R,W], as long as they fit k tokens, bool[B,R,L]."""
        batch, rows, most = noisy.shape
        if given is not None:
            noisy[np.broadcast_to(given[:, None], noisy.shape)] = np.inf
        sizes, budget = np.repeat(words.sizes, rows, axis=0), np.repeat(self._budget(words, given), rows)
        chosen = choose_words(-noisy.reshape(batch * rows, most), sizes, budget) & (budget > 0)[:, None]
        repeated = Words(index=np.repeat(words.index, rows, axis=0), sizes=sizes)
        return repeated.spread(chosen).reshape(batch, rows, words.index.shape[1])

    def _noisy(self, importance: NDArray[np.float32], rng: Draws, rows: int) -> NDArray[np.float32]:
        noisy = rng.normal(rows, importance.shape[1])
        noisy *= np.float32(self.config.sigma)
        noisy += importance[:, None]
        return noisy

    def _budget(self, words: Words, given: NDArray[np.bool_] | None) -> NDArray[np.int64]:
        """Return the number of tokens to hide, i64[B]."""
        counts, ratio = words.counts, self.config.ratio
        # 1e-9 more, so that 0.3 * 10 is 3 and not 2.9999.
        budget = np.maximum(1 if ratio else 0, np.floor(counts * ratio + 1e-9).astype(np.int64))
        least = 0 if given is None else (words.sizes * given).sum(1)
        return np.where(counts > 0, np.maximum(budget, least), 0)


def largest(scores: NDArray[np.float32], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the counts i64[B] largest of scores f32[B,R,L] in each row, bool[B,R,L]; ties go to the earlier position.

    -inf is never chosen, as a text has at least `counts` finite scores.
    """
    length = scores.shape[2]
    index = np.minimum(length - counts, length - 1)
    limit = np.sort(scores, axis=2)[np.arange(len(scores)), :, index][:, :, None]
    chosen = (scores >= limit) & (counts > 0)[:, None, None]
    surplus = np.nonzero(chosen.sum(2, dtype=np.int32) > counts[:, None])
    if len(surplus[0]):
        chosen[surplus] = _first_among_equals(scores[surplus], limit[surplus], counts[surplus[0]])
    return chosen


def _first_among_equals(
    scores: NDArray[np.float32], limit: NDArray[np.float32], counts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    above, equal = scores > limit, scores == limit
    chosen: NDArray[np.bool_] = above | (equal & (np.cumsum(equal, axis=1) <= (counts - above.sum(1))[:, None]))
    return chosen


def mean_over_words(words: Words, importance: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean importance of each word's tokens, f32[B,W] (0 beyond a text's last word)."""
    batch, most = words.sizes.shape
    bins = (words.index + np.arange(batch)[:, None] * (most + 1)).ravel()
    sums = np.bincount(bins, weights=importance.ravel(), minlength=batch * (most + 1))
    return (sums.reshape(batch, most + 1)[:, :most] / np.maximum(1, words.sizes)).astype(np.float32)
