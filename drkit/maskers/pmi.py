"""Hide the tokens that carry the most information from the decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from drkit.core.types import BuildContext, MaskedView, TokenBatch, Views
from drkit.errors import DrkitError
from drkit.maskers.specs import PmiConfig
from drkit.maskers.uniform import hide_words
from drkit.maskers.views import Corruption, Words, choose_words, clean_view, find_words, masked_view

if TYPE_CHECKING:
    from drkit.core.draws import Draws


class PmiMasker:
    """Uniform whole words for the encoder; for the decoder the k most important tokens after Gaussian noise.

    t_i ~ Normal(importance_i, sigma), and the k = floor(ratio * maskable tokens), at least 1, with the largest t
    are hidden. With `unit = "word"` a word's importance is the mean over its tokens, and words are taken whole, as
    long as they fit k. With `rows` every row draws its own noise and hides its own k tokens.

    Source: CDMAE section 3.2; importance is its averaged pointwise mutual information (the signal `importance`).
    """

    def __init__(self, config: PmiConfig, context: BuildContext) -> None:
        self.config = config
        self.corruption = Corruption.of(context, config.mask_token_share)

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0) -> Views:
        """Return two views of a batch; `rows` > 0: the decoder's is a visibility pattern bool[B,rows,L].

        Raises DrkitError if the batch has no importance, or a value is not finite.
        """
        encoder = self.encoder_view(tokens, rng)
        return Views(encoder=encoder, decoder=self.decoder_view(tokens, rng, rows), context=tokens)

    def encoder_view(self, tokens: TokenBatch, rng: Draws) -> MaskedView:
        """Return the encoder's view alone."""
        return hide_words(tokens, self.config.encoder_ratio, rng, self.corruption)

    def decoder_view(self, tokens: TokenBatch, rng: Draws, rows: int = 0) -> MaskedView:
        """Return the decoder's view alone. Raises DrkitError as the call does."""
        importance, words = _importance(tokens), find_words(tokens)
        hide = self._whole_words if self.config.unit == "word" else self._tokens
        chosen = hide(words, importance, rng, max(1, rows))
        if rows:
            return clean_view(tokens, torch.from_numpy(~chosen & tokens.attention.numpy()[:, None]))
        return masked_view(tokens, chosen[:, 0], rng, self.corruption)

    def _tokens(self, words: Words, importance: NDArray[np.float32], rng: Draws, rows: int) -> NDArray[np.bool_]:
        """Return the k tokens with the largest noisy importance, bool[B,R,L]."""
        maskable = words.index < words.sizes.shape[1]
        noisy = self._noisy(np.where(maskable, importance, np.float32(-np.inf)), rng, rows)
        return largest(noisy, self._budget(words))

    def _whole_words(self, words: Words, importance: NDArray[np.float32], rng: Draws, rows: int) -> NDArray[np.bool_]:
        """Return whole words in order of noisy importance, as long as they fit k tokens, bool[B,R,L]."""
        batch, most = words.sizes.shape
        noisy = self._noisy(mean_over_words(words, importance), rng, rows)
        sizes = np.repeat(words.sizes, rows, axis=0)
        chosen = choose_words(-noisy.reshape(batch * rows, most), sizes, np.repeat(self._budget(words), rows))
        repeated = Words(index=np.repeat(words.index, rows, axis=0), sizes=sizes)
        return repeated.spread(chosen).reshape(batch, rows, words.index.shape[1])

    def _noisy(self, importance: NDArray[np.float32], rng: Draws, rows: int) -> NDArray[np.float32]:
        noisy = rng.normal(rows, importance.shape[1])
        noisy *= np.float32(self.config.sigma)
        noisy += importance[:, None]
        return noisy

    def _budget(self, words: Words) -> NDArray[np.int64]:
        counts = words.counts
        # 1e-9 more, so that 0.3 * 10 is 3 and not 2.9999.
        budget = np.floor(counts * self.config.decoder_ratio + 1e-9).astype(np.int64)
        return np.where(counts > 0, np.maximum(1, budget), 0)


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


def _importance(tokens: TokenBatch) -> NDArray[np.float32]:
    if "importance" not in tokens.signals:
        raise DrkitError(
            "the masker 'pmi' needs the importance of every token, but the batch has none. In a run a stage computes "
            "it from the corpus; in your own loop, pass TokenBatch.signals['importance'], f32[B,L]"
        )
    importance: NDArray[np.float32] = tokens.signals["importance"].numpy()
    if not np.isfinite(importance).all():
        raise DrkitError("the importance of some token is not finite; compute the PMI statistics of this corpus again")
    return importance
