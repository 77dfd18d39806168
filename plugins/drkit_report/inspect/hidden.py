"""What a masker hides from the decoder over many texts: which words, how many stop-words, and how important they are.

Source: CDMAE's figures 2 (the most hidden terms) and 3a (how often each word of one text is hidden).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from drkit.core.checksums import check_unchanged
from drkit.core.draws import Draws
from drkit.core.types import TokenBatch
from drkit.data.arrays import SignalValues
from drkit.data.store import TokenStore
from drkit.maskers.views import find_units, hidden_tokens
from drkit_report.inspect.masks import ViewStatistics, common_tokens, view_statistics
from drkit_report.inspect.source import COUNTS_STAGE, IMPORTANCE, TextSource

TENTHS = 10
_BATCH = 128
_DRAWS = 200
_SEED = 1


@frozen(eq=False, slots=False)
class TextSample:
    """Texts spread evenly over a run's tokens; importance: of their tokens, or None if the run did not compute it."""

    source: TextSource
    store: TokenStore
    importance: SignalValues | None
    count: int

    @classmethod
    def of(cls, source: TextSource, count: int) -> TextSample:
        """Take at most `count` texts of a finished run. Raises DrkitError if it has no tokens."""
        values = source.folder / COUNTS_STAGE / "values"
        for path in (values, source.folder / "tokens"):
            check_unchanged(path)
        importance = SignalValues.open(values) if values.is_dir() else None
        return cls(source, TokenStore.open(source.folder / "tokens"), importance, count)

    @property
    def indices(self) -> NDArray[np.int64]:
        """The indices i64[n] of the texts in the run's tokens."""
        return np.unique(np.linspace(0, len(self.store) - 1, self.count).astype(np.int64))

    @property
    def signals(self) -> dict[str, SignalValues]:
        """The signals that batches carry."""
        return {} if self.importance is None else {IMPORTANCE: self.importance}

    def batches(self) -> Iterator[TokenBatch]:
        """Yield the sampled texts in batches of fixed size, with the signals that the masker reads."""
        for start in range(0, len(self.indices), _BATCH):
            yield self.store.batch(self.indices[start : start + _BATCH], signals=self.signals)

    @cached_property
    def borders(self) -> NDArray[np.float64] | None:
        """The importances f64[9] that divide all tokens into tenths; None without importance, or without tokens."""
        if self.importance is None:
            return None
        values = np.concatenate([tokens.signals[IMPORTANCE][tokens.maskable].numpy() for tokens in self.batches()])
        if not len(values):
            return None
        return np.asarray(np.quantile(values, np.arange(1, TENTHS) / TENTHS), dtype=np.float64)

    @cached_property
    def common_share(self) -> float:
        """Share of stop-words and punctuation among all tokens of the texts."""
        common = total = 0
        for tokens in self.batches():
            common += int(common_tokens(tokens, self.source.tokenizer).sum())
            total += int(tokens.maskable.sum())
        return common / max(total, 1)


@frozen(eq=False)
class HiddenTokens:
    """What one masker hides from the decoder of a sample of texts.

    counts: over all texts. tokens: how often each token id is hidden. tenths: f64[10], the share of tokens that are
    hidden, by tenths of importance, the least important first; None without importance.
    """

    counts: ViewStatistics
    tokens: Counter[int] = field(repr=False)
    tenths: NDArray[np.float64] | None = field(repr=False)

    def share(self, token: int) -> float:
        """Return a token's share of all hidden tokens."""
        return self.tokens[token] / max(self.counts.hidden, 1)


def measure_hidden(sample: TextSample, masker: Any) -> HiddenTokens:
    """Draw the decoder's masks of all texts of a sample once, and count what is hidden."""
    tokenizer, borders = sample.source.tokenizer, sample.borders
    total, hits, tenths = ViewStatistics(0, 0, 0, 0, 0, 0, 0), Counter[int](), np.zeros((2, TENTHS))
    for tokens in sample.batches():
        view = masker(tokens, Draws(_SEED, 0, tokens.keys.numpy()))
        total += view_statistics(view, tokens, tokenizer, mask_id=tokenizer.mask_token_id)
        hidden = hidden_tokens(view) & tokens.maskable
        hits.update(tokens.ids[hidden].tolist())
        if borders is None:
            continue
        for row, chosen in enumerate((tokens.maskable, hidden)):
            found = np.searchsorted(borders, tokens.signals[IMPORTANCE][chosen].numpy(), side="right")
            tenths[row] += np.bincount(found, minlength=TENTHS)
    return HiddenTokens(total, hits, None if borders is None else tenths[1] / np.maximum(tenths[0], 1))


def hiding_rates(
    sample: TextSample, index: int, maskers: Mapping[str, Any], *, draws: int = _DRAWS
) -> tuple[list[str], dict[str, NDArray[np.float64]]]:
    """Return the words of one text, and for each masker how often each word is hidden (the mean over its tokens).

    index: of the text in the run's tokens.
    """
    tokens = sample.store.batch([index], signals=sample.signals)
    words = find_units(tokens).index[0]
    inside = np.flatnonzero(tokens.maskable[0].numpy())
    groups = np.split(inside, np.flatnonzero(np.diff(words[inside])) + 1)
    rates = {}
    for label, masker in maskers.items():
        hits = torch.zeros(tokens.ids.shape[1])
        for epoch in range(draws):
            hits += hidden_tokens(masker(tokens, Draws(_SEED, epoch, [index])))[0]
        rates[label] = np.array([float(hits[group].mean()) / draws for group in groups])
    return [sample.source.tokenizer.decode(tokens.ids[0, group]) for group in groups], rates


def typical_text(sample: TextSample) -> int | None:
    """Return the index of a text to show: of 50 with about 20 tokens, the middle one by spread of importance.

    None if all texts are empty.
    """
    lengths = np.diff(sample.store.offsets)
    nearest = np.argsort(np.abs(lengths - 20), kind="stable")[:50].tolist()
    fitting = [index for index in nearest if lengths[index]]
    if sample.importance is not None:
        values, offsets = sample.importance.values, sample.store.offsets
        fitting.sort(key=lambda i: float(values[offsets[i] : offsets[i + 1]].std()))
    return fitting[len(fitting) // 2] if fitting else None
