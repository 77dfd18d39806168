"""Contexts: for every text another text, which a decoder rebuilds or a loss compares it with, drawn in every epoch.

`span`: another span of the same document (coCondenser, CoT-MAE). `next-span`: the one after it (LLARA). `query`: one
of the text's candidate queries. `mixed`: a query or another span (Query-as-context, table 4). The context of a text
depends only on (seed, epoch, text), so decoders with the same context rebuild the same text. Its tokens are returned
unmasked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from attrs import evolve, field, fields, frozen
from numpy.typing import NDArray
from torch import Tensor

from drkit.core.draws import Draws
from drkit.core.types import TokenBatch, map_tensors
from drkit.data.arrays import SignalValues
from drkit.data.queries import Queries
from drkit.data.spans import Spans
from drkit.data.specs import MixedContextConfig
from drkit.data.store import TokenStore
from drkit.errors import DrkitError

# Added to the seed of a run, which is smaller, so that contexts and masks are drawn independently.
_SPAN, _QUERY, _COIN = (1 << 40, 2 << 40, 3 << 40)
_LARGE = 1 << 48
_NO_SPANS = "contexts that are spans need the stage 'spans', which is missing from the run"
# Lengths are padded to multiples of this: few shapes, so the allocator can reuse its blocks.
BUCKET = 16


@frozen(eq=False)
class PretrainingTexts:
    """The texts of pre-training, and what contexts are chosen from.

    store: the texts. spans: which of them are cut from one document. queries: candidate queries of each text. signals,
    query_signals: those that batches of texts and of queries carry, by name.
    """

    store: TokenStore
    spans: Spans | None = None
    queries: Queries | None = None
    signals: Mapping[str, SignalValues] = field(factory=dict)
    query_signals: Mapping[str, SignalValues] = field(factory=dict)

    @classmethod
    def open(cls, inputs: Mapping[str, Path]) -> PretrainingTexts:
        """Open those among the inputs of a stage. Raises DrkitError if they have no texts."""
        return cls(
            store=open_texts(inputs),
            spans=Spans.open(inputs["spans"]) if "spans" in inputs else None,
            queries=Queries(inputs["queries"]) if "queries" in inputs else None,
            signals=batch_signals(open_signals(inputs)),
            query_signals=batch_signals(open_signals(inputs, "query-signals")),
        )

    def batch(self, indices: NDArray[np.int64]) -> TokenBatch:
        """Return the texts at these indices."""
        return self.store.batch(indices, pad_to=BUCKET, signals=self.signals)

    def other_spans(self, indices: NDArray[np.int64], seed: int, epoch: int) -> TokenBatch:
        """Return another span of each text's document; the only span of a document is its own context.

        Raises DrkitError without spans.
        """
        if self.spans is None:
            raise DrkitError(_NO_SPANS)
        first, count = self.spans.of(self.spans.documents[indices])
        others = np.maximum(count - 1, 1)
        drawn = Draws(seed + _SPAN, epoch, indices).integers(_LARGE) % others
        skip = (drawn >= indices - first) & (count > 1)
        return _with_keys(indices, self.batch(first + drawn + skip))

    def next_spans(self, indices: NDArray[np.int64]) -> TokenBatch:
        """Return the span after each text in its document; of the last one, the span before it.

        The only span of a document is its own context. Raises DrkitError without spans.
        """
        if self.spans is None:
            raise DrkitError(_NO_SPANS)
        first, count = self.spans.of(self.spans.documents[indices])
        is_last = indices == first + count - 1
        return _with_keys(indices, self.batch(np.where(is_last, indices - (count > 1), indices + 1)))

    def queries_of(self, indices: NDArray[np.int64], seed: int, epoch: int) -> TokenBatch:
        """Return one of each text's candidate queries. Raises DrkitError without queries."""
        if self.queries is None:
            raise DrkitError("contexts that are queries need the stage 'queries', which is missing from the run")
        first = self.queries.offsets[indices]
        count = self.queries.offsets[indices + 1] - first
        drawn = Draws(seed + _QUERY, epoch, indices).integers(_LARGE) % count
        return _with_keys(indices, self.queries.store.batch(first + drawn, pad_to=BUCKET, signals=self.query_signals))


class SelfContext:
    """The text itself."""

    def __init__(self, _config: Any = None, _context: Any = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def __call__(self, tokens: TokenBatch, texts: PretrainingTexts, *, seed: int, epoch: int) -> TokenBatch:  # noqa: ARG002
        """Return the batch unchanged: a text is its own context."""
        return tokens


class SpanContext:
    """Another span of the same document."""

    def __init__(self, _config: Any = None, _context: Any = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def __call__(self, tokens: TokenBatch, texts: PretrainingTexts, *, seed: int, epoch: int) -> TokenBatch:
        """Return one span per text; see `PretrainingTexts.other_spans`."""
        return texts.other_spans(tokens.keys.numpy(), seed, epoch)


class NextSpanContext:
    """The next span of the same document."""

    def __init__(self, _config: Any = None, _context: Any = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def __call__(self, tokens: TokenBatch, texts: PretrainingTexts, *, seed: int, epoch: int) -> TokenBatch:  # noqa: ARG002
        """Return one span per text; see `PretrainingTexts.next_spans`."""
        return texts.next_spans(tokens.keys.numpy())


class QueryContext:
    """One of the candidate queries of each text."""

    def __init__(self, _config: Any = None, _context: Any = None) -> None:
        """Ignore the settings and the context that every part is built with: a stage makes the queries."""

    def __call__(self, tokens: TokenBatch, texts: PretrainingTexts, *, seed: int, epoch: int) -> TokenBatch:
        """Return one query per text; see `PretrainingTexts.queries_of`."""
        return texts.queries_of(tokens.keys.numpy(), seed, epoch)


class MixedContext:
    """Either a query or a span, drawn for every text and epoch (the paper draws once per step)."""

    def __init__(self, config: MixedContextConfig, _context: Any = None) -> None:
        self.share = config.share

    def __call__(self, tokens: TokenBatch, texts: PretrainingTexts, *, seed: int, epoch: int) -> TokenBatch:
        """Return a query with probability `share`, else a span, for each text."""
        indices = tokens.keys.numpy()
        is_query = Draws(seed + _COIN, epoch, indices).uniform() < self.share
        queries = texts.queries_of(indices[is_query], seed, epoch)
        spans = texts.other_spans(indices[~is_query], seed, epoch)
        order = np.argsort(np.concatenate([np.flatnonzero(is_query), np.flatnonzero(~is_query)]))
        rows = torch.from_numpy(order)
        return map_tensors(stacked(queries, spans, texts.store.pad_id), lambda tensor: tensor[rows])


# The values of padding tokens; in `ids` it is `pad_id`.
_PADDING = {"attention": False, "maskable": False, "words": -1}


def stacked(first: TokenBatch, second: TokenBatch, pad_id: int) -> TokenBatch:
    """Concatenate the rows of two batches, padded to the longer one.

    Raises DrkitError if the batches carry different signals.
    """
    if first.signals.keys() != second.signals.keys():
        alone = sorted(first.signals.keys() ^ second.signals.keys())
        raise DrkitError(f"cannot stack two batches: only one of them carries the signal {', '.join(alone)}")
    padding, both = {**_PADDING, "ids": pad_id}, (first, second)
    names = [a.name for a in fields(TokenBatch) if a.name != "signals"]
    joined = {name: _joined([getattr(batch, name) for batch in both], both, padding.get(name, 0)) for name in names}
    signals = {name: _joined([batch.signals[name] for batch in both], both, 0.0) for name in first.signals}
    return TokenBatch(**joined, signals=signals)


def _joined(values: Sequence[Tensor], batches: Sequence[TokenBatch], fill: float) -> Tensor:
    """Concatenate values of two batches; those per token are padded to the longer batch."""
    lengths = [batch.ids.shape[1] for batch in batches]
    # Values per token are as long as their batch; values per text have the same length in both batches.
    if min(value.ndim for value in values) < 2 or [value.shape[1] for value in values] != lengths:
        return torch.cat(list(values))
    width = max(lengths)
    pads = [(0, 0) * (value.ndim - 2) + (0, width - value.shape[1]) for value in values]
    return torch.cat([F.pad(value, pad, value=fill) for value, pad in zip(values, pads, strict=True)])


def _with_keys(indices: NDArray[np.int64], contexts: TokenBatch) -> TokenBatch:
    return evolve(contexts, keys=torch.from_numpy(np.asarray(indices, dtype=np.int64)))


def open_texts(inputs: Mapping[str, Path]) -> TokenStore:
    """Open the texts that pre-training reads: the spans of a run's documents if it cuts them, else its passages.

    inputs: the folders of a run's stages, by name. Raises DrkitError if both are missing.
    """
    if "spans" in inputs:
        return TokenStore.open(inputs["spans"])
    if "tokens" in inputs:
        return TokenStore.open(inputs["tokens"])
    raise DrkitError(f"pre-training needs the stage 'tokens' or 'spans', got {', '.join(inputs) or 'no stages'}")


def open_signals(inputs: Mapping[str, Path], of: str = "signals") -> dict[str, SignalValues]:
    """Open the signals among a stage's inputs, by name.

    of: `signals` for the signals of the texts, `query-signals` for those of the queries that serve as contexts.
    """
    prefix = f"{of}/"
    return {name[len(prefix) :]: SignalValues.open(path) for name, path in inputs.items() if name.startswith(prefix)}


def batch_signals(signals: Mapping[str, SignalValues]) -> dict[str, SignalValues]:
    """Return the signals that a batch carries: those of tokens and texts, not those of the vocabulary."""
    return {name: values for name, values in signals.items() if values.scope != "vocabulary"}
