"""How informative each token is: its averaged mutual information (AMI) with the n-grams around it.

`AMI(w_i) = mean_j PMI(w_{i-j} .. w_i) + mean_j PMI(w_i .. w_{i+j})`, j = 1 .. window - 1, over the n-grams within
the text; an n-gram that was not counted adds 0 and stays in the mean. With `ends = "window"` both sums are divided by
window - 1, as in equation 8 to the letter, so that tokens near the ends of a text count for less. CDMAE section 3.2;
PMI of longer n-grams as in PMI-Masking (Levine et al. 2021).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.core.engine import Engine
from drkit.core.protocols import SignalTexts
from drkit.data.arrays import SignalValues, write_signal
from drkit.data.counts import NgramCounts, count_ngrams, remaining_tokens, text_chunks
from drkit.data.store import TokenStore, tokenise
from drkit.errors import DrkitError
from drkit.signals.specs import ImportanceConfig

PMI = ("fragment", "specific")
ENDS = ("fitting", "window")
_TOKENS_AT_ONCE = 1 << 18
NGRAM_COUNTS = "counts"


class ImportanceSignal:
    """The signal `importance`, one f32 per token: its averaged PMI with the n-grams around it.

    Source: CDMAE section 3.2 (Li et al. 2023).
    """

    def __init__(self, config: ImportanceConfig, _context: object = None) -> None:
        self.config = config

    def fit(self, texts: SignalTexts, folder: Path) -> Mapping[str, Any]:
        """Count the n-grams of the corpus; return a description of the counts."""
        config, given = self.config, (texts.store, folder / NGRAM_COUNTS)
        counts = count_ngrams(*given, window=config.window, min_count=config.min_count, engine=texts.engine)
        return {"ngrams": counts.describe()}

    def values(self, texts: SignalTexts, folder: Path) -> Iterator[NDArray[np.float32]]:
        """Yield the importance of every content token, from the counts that `fit` wrote to `folder`."""
        counts, config = NgramCounts(folder / NGRAM_COUNTS), self.config
        settings: Any = {"pmi": config.pmi, "ends": config.ends}
        return token_values(texts.store, counts, **settings, scratch=texts.scratch, engine=texts.engine)


def corpus_importance(
    texts: Iterable[str], tokenizer: Any, config: ImportanceConfig | None = None, *, max_length: int = 512
) -> list[NDArray[np.float32]]:
    """Return the importance f32[tokens] of every token of each text, special tokens left out.

    The n-grams are counted over all of the texts, on disk, in a temporary folder. tokenizer: a fast one; texts are
    truncated to `max_length` tokens with special ones. `drkit.encoders.token_batch` takes these arrays as a signal.

    Raises DrkitError as `drkit.data.tokenise` does.
    """
    config = config or ImportanceConfig()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tokenise(((str(n), text) for n, text in enumerate(texts)), tokenizer, folder, max_length=max_length)
        store = TokenStore.open(folder)
        counts = count_ngrams(store, folder / NGRAM_COUNTS, window=config.window, min_count=config.min_count)
        chunks = token_values(store, counts, pmi=config.pmi, ends=config.ends)
        values = np.concatenate([np.empty(0, np.float32), *chunks])
        return [values[start:stop] for start, stop in pairwise(store.offsets.tolist())]


def importance(
    store: TokenStore, counts: NgramCounts, folder: Path, *, pmi: str = "fragment", ends: str = "fitting"
) -> SignalValues:
    """Write the importance of every content token of `store` to `folder`, and return it memory-mapped.

    `pmi`: `fragment`, log p(n-gram) - log p(token) - log p(rest of the n-gram); `specific`, log p(n-gram) - the sum of
    its tokens' log p. `ends`: `fitting`, a side is divided by its n-grams; `window`, by window - 1.
    """
    metadata = {"pmi": pmi, "window": counts.window, "min_count": counts.min_count, "ends": ends}
    values = token_values(store, counts, pmi=pmi, ends=ends)
    return write_signal("importance", values, folder, scope="token", count=len(store.flat_ids), metadata=metadata)


def token_values(
    store: TokenStore,
    counts: NgramCounts,
    *,
    pmi: str = "fragment",
    ends: str = "fitting",
    scratch: Path | None = None,
    engine: Engine | None = None,
) -> Iterator[NDArray[np.float32]]:
    """Yield the importance of every content token of `store`, in order, about 262,144 tokens at a time.

    scratch, engine: see `NgramCounts.log_shares`.
    """
    if pmi not in PMI:
        raise DrkitError(f"pmi must be one of {', '.join(PMI)}, got {pmi!r}")
    if ends not in ENDS:
        raise DrkitError(f"ends must be one of {', '.join(ENDS)}, got {ends!r}")
    texts = list(text_chunks(store.offsets, _TOKENS_AT_ONCE))
    offsets = (store.offsets[first : last + 1] for first, last in texts)
    log_shares = counts.log_shares(store, texts, scratch=scratch, engine=engine)
    return (_ami(shares, o - o[0], pmi, ends) for o, shares in zip(offsets, log_shares, strict=True))


def _ami(
    log_shares: Sequence[NDArray[np.float64]], offsets: NDArray[np.int64], pmi: str, ends: str
) -> NDArray[np.float32]:
    """Return f32[tokens], from the log-probability f64[tokens] of the n-gram of each order that starts at a token.

    `left[i]` sums over the n-grams that end at i, `right[i]` over those that start at i.
    """
    tokens = int(offsets[-1])
    left, right = np.zeros(tokens), np.zeros(tokens)
    single = lower = summed = log_shares[0]
    for order, whole in enumerate(log_shares[1:], start=2):
        starts = tokens - order + 1
        if starts <= 0:
            break
        # The n-gram at s has its first token at s and its last at s + order - 1.
        head, tail = slice(0, starts), slice(order - 1, None)
        if pmi == "fragment":
            ends_here = whole[head] - single[tail] - lower[head]
            starts_here = whole[head] - single[head] - lower[1 : starts + 1]
        else:
            summed = summed[:starts] + single[tail]
            ends_here = starts_here = whole[head] - summed
        left[tail] += np.nan_to_num(ends_here, nan=0.0)
        right[head] += np.nan_to_num(starts_here, nan=0.0)
        lower = whole
    if ends == "window":
        return ((left + right) / max(1, len(log_shares) - 1)).astype(np.float32)
    return _sides(left, right, offsets, len(log_shares))


def _sides(
    left: NDArray[np.float64], right: NDArray[np.float64], offsets: NDArray[np.int64], window: int
) -> NDArray[np.float32]:
    """Return the sum of both sides, each divided by its number of n-grams."""
    after = remaining_tokens(offsets) - 1
    before = np.repeat(np.diff(offsets), np.diff(offsets)) - 1 - after
    shares = (side / np.clip(n, 1, window - 1) for side, n in ((left, before), (right, after)))
    return np.asarray(sum(shares), dtype=np.float32)
