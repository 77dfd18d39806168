"""Hide whole words, or tokens, at random."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drkit.core.draws import Draws
from drkit.core.types import BuildContext, MaskedView, TokenBatch
from drkit.errors import DrkitError
from drkit.maskers.specs import UniformConfig
from drkit.maskers.views import Corruption, Words, choose_words, clean_view, find_units, masked_view, rounded_budget


class UniformMasker:
    """Hides words in random order up to round(ratio * maskable tokens); with `unit = "token"`, single tokens.

    With `rows`, each row of the visibility pattern draws its own words up to the same number of tokens; with
    `row_share = "random"` it hides every word with probability `ratio` instead, so that rows differ in their share. If
    nested, no row sees a word that the earlier view hides, and the overall share seen is the same.

    Source: BERT's whole-word masking as RetroMAE uses it (Xiao et al. 2022, section 3).
    """

    def __init__(self, config: UniformConfig, context: BuildContext) -> None:
        self.config = config
        self.corruption = Corruption.of(context, config.mask_token_share)

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0, nested: MaskedView | None = None) -> MaskedView:
        """Return a view of a batch; `rows` > 0: a visibility pattern bool[B,rows,L].

        Raises DrkitError if the draws are not for this number of texts.
        """
        words = find_units(tokens, self.config.unit)
        given = None if nested is None else words.inside(nested)
        if rows:
            return clean_view(tokens, rows_of_words(tokens, words, self._seen(words, rng, rows, given)))
        hidden = draw_words(words, self.config.ratio, rng, given)
        return masked_view(tokens, words.spread(hidden), rng, self.corruption)

    def _seen(self, words: Words, rng: Draws, rows: int, given: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Return the words that each row sees, bool[B,W,R]."""
        if self.config.row_share == "random":
            return _seen_by_chance(words, 1 - self.config.ratio, rng, rows, given)
        keys = rng.uniform(rows, words.sizes.shape[1])
        return ~_first_words(words, self.config.ratio, keys, given).transpose(0, 2, 1)


def _seen_by_chance(
    words: Words, share: float, rng: Draws, rows: int, given: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    """Return the words that each row sees, bool[B,W,R]: each with a probability that makes the mean share `share`."""
    if given is None:
        return rng.coins(share, words.sizes.shape[1], rows)
    left = 1 - (words.sizes * given).sum(1) / np.maximum(1, words.counts)
    among_the_others = np.minimum(1, share / np.maximum(left, 1e-9)).astype(np.float32)
    drawn = rng.uniform(words.sizes.shape[1], rows) < among_the_others[:, None, None]
    seen: NDArray[np.bool_] = drawn & ~given[:, :, None]
    return seen


def draw_words(words: Words, ratio: float, rng: Draws, given: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Choose whole words bool[B,W] in random order up to round(ratio * maskable tokens); `given` bool[B,W] come first.

    At least one word is chosen in every text that has words; none but the given ones if the ratio is 0.

    Raises DrkitError if the draws are not for this number of texts.
    """
    if len(rng) != len(words.sizes):
        raise DrkitError(
            f"expected draws for {len(words.sizes)} texts, got {len(rng)}; use Draws(seed, epoch, tokens.keys)"
        )
    return _first_words(words, ratio, rng.uniform(words.sizes.shape[1])[:, None], given)[:, 0]


def _first_words(
    words: Words, ratio: float, keys: NDArray[np.float32], given: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    """Choose whole words in ascending order of keys f32[B,R,W], in every row up to the text's count, bool[B,R,W]."""
    budget = rounded_budget(words.counts, ratio)
    if ratio == 0:
        first = np.zeros(words.sizes.shape, dtype=np.bool_) if given is None else given
        return np.broadcast_to(first[:, None], keys.shape)
    if given is not None:
        keys = np.where(given[:, None], np.float32(-1), keys)
        budget = np.maximum(budget, (words.sizes * given).sum(1))
    batch, rows, most = keys.shape
    sizes = np.repeat(words.sizes, rows, axis=0)
    chosen = choose_words(keys.reshape(batch * rows, most), sizes, np.repeat(budget, rows))
    return chosen.reshape(batch, rows, most)


def rows_of_words(tokens: TokenBatch, words: Words, seen: NDArray[np.bool_]) -> Tensor:
    """Return the visible positions bool[B,R,L]: tokens of words seen bool[B,W,R], and special tokens; never padding.

    Copies one row of bytes per token and transposes once: ten times faster than gathering by word.
    """
    batch, most, rows = seen.shape
    constant = np.broadcast_to(np.array([[True], [False]]), (batch, 2, rows))
    table = torch.from_numpy(np.concatenate([seen, constant], axis=1)).view(-1, rows)
    # Words have rows 0 to most - 1 of the table, special tokens row `most`, and padding row most + 1.
    index = np.where(tokens.attention.numpy(), words.index, most + 1)
    rows_of_table = torch.from_numpy((index + np.arange(batch)[:, None] * (most + 2)).ravel())
    return table.index_select(0, rows_of_table).view(batch, -1, rows).transpose(1, 2).contiguous()
