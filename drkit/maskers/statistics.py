"""Measure what a masker hides: ratios, shares of the three corruptions, split words, and stop-words among the hidden.

CDMAE (section 3.2) counts stop-words and punctuation among masked tokens: about 40% under uniform masking of BERT's
texts. Stop-words here are the 179 English ones of NLTK's list, as bm25s ships them; punctuation is any word without a
letter or digit. A word counts as the tokenizer sees it, so every piece of a stop-word is one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import frozen

from drkit.maskers.views import NO_TARGET, find_words

if TYPE_CHECKING:
    from torch import Tensor

    from drkit.core.types import MaskedView, TokenBatch


@frozen
class ViewStatistics:
    """Counts over the maskable tokens of one view, or of many added up.

    tokens: maskable tokens. hidden: the hidden ones of these, split into made_mask, made_random and kept. common:
    hidden tokens of stop-words and punctuation. torn: words with some tokens hidden and others not.
    """

    tokens: int
    hidden: int
    made_mask: int
    made_random: int
    kept: int
    common: int
    torn: int

    def __add__(self, other: ViewStatistics) -> ViewStatistics:
        return ViewStatistics(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    @property
    def ratio(self) -> float:
        """Share of the maskable tokens that are hidden."""
        return self.hidden / max(self.tokens, 1)

    @property
    def common_share(self) -> float:
        """Share of stop-words and punctuation among the hidden tokens."""
        return self.common / max(self.hidden, 1)

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the hidden tokens: the share made [MASK], made another token, kept."""
        made = max(self.hidden, 1)
        return self.made_mask / made, self.made_random / made, self.kept / made


def _values(counts: ViewStatistics) -> tuple[int, ...]:
    return counts.tokens, counts.hidden, counts.made_mask, counts.made_random, counts.kept, counts.common, counts.torn


def view_statistics(view: MaskedView, tokens: TokenBatch, tokenizer: Any, *, mask_id: int) -> ViewStatistics:
    """Return the statistics of a view of `tokens`, the clean text."""
    hidden = hidden_tokens(view) & tokens.maskable
    made_mask = hidden & (view.ids == mask_id)
    changed = hidden & ~made_mask & (view.ids != tokens.ids)
    return ViewStatistics(
        tokens=_count(tokens.maskable),
        hidden=_count(hidden),
        made_mask=_count(made_mask),
        made_random=_count(changed),
        kept=_count(hidden & ~made_mask & ~changed),
        common=_count(hidden & common_tokens(tokens, tokenizer)),
        torn=torn_words(hidden, tokens),
    )


def hidden_tokens(view: MaskedView) -> Tensor:
    """bool[B,L]: what a view without rows hides: its targets, or what waits for a generator's samples.

    A generator's view has every token as a target; what is hidden has a draw to sample by.
    """
    return view.labels != NO_TARGET if view.noise is None else view.noise >= 0


def torn_words(hidden: Tensor, tokens: TokenBatch) -> int:
    """Count the words that are partly hidden. hidden bool[B,L]."""
    words = find_words(tokens)
    batch, most = words.sizes.shape
    bins = (words.index + np.arange(batch)[:, None] * (most + 1)).ravel()
    counts = np.bincount(bins, weights=hidden.numpy().ravel(), minlength=batch * (most + 1))
    of_words = counts.reshape(batch, most + 1)[:, :most]
    return int(((of_words > 0) & (of_words < words.sizes)).sum())


def common_tokens(tokens: TokenBatch, tokenizer: Any) -> Tensor:
    """Return the tokens bool[B,L] of stop-words and of words without a letter or digit."""
    checked: dict[tuple[int, ...], bool] = {}
    index = find_words(tokens).index
    out = np.zeros(index.shape, dtype=np.bool_)
    for row, ids in enumerate(tokens.ids.numpy()):
        inside = np.flatnonzero(tokens.maskable[row].numpy())
        if not len(inside):
            continue
        for positions in np.split(inside, np.flatnonzero(np.diff(index[row, inside])) + 1):
            word = tuple(ids[positions].tolist())
            if word not in checked:
                checked[word] = is_common(tokenizer.decode(list(word)))
            out[row, positions] = checked[word]
    return torch.from_numpy(out)


def is_common(word: str) -> bool:
    """Return whether a word is an English stop-word, or has neither letter nor digit.

    >>> [is_common(word) for word in ("The", " of ", "--", "retriever", "4")]
    [True, True, True, False, False]
    """
    plain = word.strip().lower()
    return plain in stop_words() or not any(character.isalnum() for character in plain)


@cache
def stop_words() -> frozenset[str]:
    """Return NLTK's 179 English stop-words, from bm25s."""
    from bm25s.stopwords import STOPWORDS_EN_PLUS

    return frozenset(STOPWORDS_EN_PLUS)


def _count(chosen: Tensor) -> int:
    return int(chosen.sum())
