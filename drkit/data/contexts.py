"""Contexts: for every text another text that the decoder rebuilds from it, drawn in every epoch.

`span`: another span of the same document (coCondenser, CoT-MAE). `query`: one of the text's candidate queries. `mixed`:
either, with probability 1/2 (Query-as-context, table 4). The context of a text depends only on (seed, epoch, text). Its
tokens are returned unmasked; the mask of the decoder is drawn on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from attrs import evolve, field, fields, frozen
from numpy.typing import NDArray

from drkit.core.draws import Draws
from drkit.core.types import TokenBatch, map_tensors
from drkit.data.arrays import SignalValues
from drkit.data.queries import Queries
from drkit.data.spans import Spans
from drkit.data.store import TokenStore
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("self", "span", "query", "mixed")
# Added to the seed of a run, which is smaller, so that contexts and masks are drawn independently.
_SPAN, _QUERY, _COIN = (1 << 40, 2 << 40, 3 << 40)
_LARGE = 1 << 48


class Contexts(Protocol):
    """Draws a context for every text."""

    def batch(self, indices: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """Return the contexts of the texts at these indices in one epoch; `keys` are the indices of the texts."""


@frozen(eq=False)
class SpanContexts:
    """Contexts from other spans of the same document; the only span of a document is its own context."""

    store: TokenStore
    spans: Spans
    signals: Mapping[str, SignalValues] = field(factory=dict)

    def batch(self, indices: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """Return the contexts of the spans at these indices; see `Contexts.batch`."""
        first, count = self.spans.of(self.spans.documents[indices])
        others = np.maximum(count - 1, 1)
        drawn = Draws(seed + _SPAN, epoch, indices).integers(_LARGE) % others
        skip = (drawn >= indices - first) & (count > 1)
        batch = self.store.batch(first + drawn + skip, pad_to=pad_to, signals=self.signals)
        return _of(indices, batch)


@frozen(eq=False)
class QueryContexts:
    """Contexts from the candidate queries of each text."""

    queries: Queries
    signals: Mapping[str, SignalValues] = field(factory=dict)

    def batch(self, indices: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """Return the contexts of the texts at these indices; see `Contexts.batch`."""
        first = self.queries.offsets[indices]
        count = self.queries.offsets[indices + 1] - first
        drawn = Draws(seed + _QUERY, epoch, indices).integers(_LARGE) % count
        return _of(indices, self.queries.store.batch(first + drawn, pad_to=pad_to, signals=self.signals))


@frozen(eq=False)
class MixedContexts:
    """Either a query or a span, drawn for every text and epoch (the paper draws once per step)."""

    queries: QueryContexts
    spans: SpanContexts
    share: float = 0.5

    def batch(self, indices: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """Return the contexts of the texts at these indices: queries with probability `share`, else spans."""
        import torch

        is_query = Draws(seed + _COIN, epoch, indices).uniform() < self.share
        queries = self.queries.batch(indices[is_query], epoch, seed, pad_to)
        spans = self.spans.batch(indices[~is_query], epoch, seed, pad_to)
        order = np.argsort(np.concatenate([np.flatnonzero(is_query), np.flatnonzero(~is_query)]))
        rows = torch.from_numpy(order)
        return map_tensors(stacked(queries, spans, self.spans.store.pad_id), lambda tensor: tensor[rows])


# The values of padding tokens; in `ids` it is `pad_id`.
_PADDING = {"attention": False, "maskable": False, "words": -1}


def stacked(first: TokenBatch, second: TokenBatch, pad_id: int) -> TokenBatch:
    """Concatenate the rows of two batches, padded to the longer one; contexts are dropped.

    Raises DrkitError if the batches carry different signals.
    """
    import torch

    padding = {**_PADDING, "ids": pad_id}
    names = [a.name for a in fields(TokenBatch) if a.name not in ("signals", "context")]
    joined = {
        name: torch.cat(_even((getattr(first, name), getattr(second, name)), (first, second), padding.get(name, 0)))
        for name in names
    }
    if first.signals.keys() != second.signals.keys():
        alone = sorted(first.signals.keys() ^ second.signals.keys())
        raise DrkitError(f"cannot stack two batches: only one of them carries the signal {', '.join(alone)}")
    signals = {
        name: torch.cat(_even((values, second.signals[name]), (first, second), 0.0))
        for name, values in first.signals.items()
    }
    return TokenBatch(**joined, signals=signals)  # type: ignore[arg-type]


def _even(values: tuple[Tensor, Tensor], batches: tuple[TokenBatch, TokenBatch], fill: float) -> list[Tensor]:
    """Pad values per token to the longer batch; return other values unchanged."""
    import torch.nn.functional as F

    lengths = [batch.ids.shape[1] for batch in batches]
    # Values per token are as long as their batch; values per text have the same length in both batches.
    if min(value.ndim for value in values) < 2 or [value.shape[1] for value in values] != lengths:
        return list(values)
    width = max(lengths)
    pads = [(0, 0) * (value.ndim - 2) + (0, width - value.shape[1]) for value in values]
    return [F.pad(value, pad, value=fill) for value, pad in zip(values, pads, strict=True)]


def _of(indices: NDArray[np.int64], contexts: TokenBatch) -> TokenBatch:
    import torch

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


def open_contexts(inputs: Mapping[str, Path], kind: str) -> Contexts | None:
    """Open the contexts of a kind (`self`, `span`, `query`, `mixed`) for the texts of `open_texts`; None for `self`.

    They carry the signals among the inputs. Raises DrkitError if a required stage is missing or the kind is unknown.
    """
    if kind not in KINDS:
        raise DrkitError(f"unknown contexts {kind!r}; choose from {', '.join(KINDS)}")
    needed = {"span": ("spans",), "query": ("queries",), "mixed": ("spans", "queries")}.get(kind, ())
    missing = [name for name in needed if name not in inputs]
    if missing:
        raise DrkitError(f"contexts {kind!r} need the stage {' and '.join(missing)}, which is missing from the run")
    if kind == "self":
        return None
    if kind == "span":
        return _span_contexts(inputs)
    if kind == "query":
        return _query_contexts(inputs)
    return MixedContexts(_query_contexts(inputs), _span_contexts(inputs))


def _span_contexts(inputs: Mapping[str, Path]) -> SpanContexts:
    return SpanContexts(open_texts(inputs), Spans.open(inputs["spans"]), batch_signals(open_signals(inputs)))


def _query_contexts(inputs: Mapping[str, Path]) -> QueryContexts:
    return QueryContexts(Queries.open(inputs["queries"]), batch_signals(open_signals(inputs, "query-signals")))


def batch_signals(signals: Mapping[str, SignalValues]) -> dict[str, SignalValues]:
    """Return the signals that a batch carries: those of tokens and texts, not those of the vocabulary."""
    return {name: values for name, values in signals.items() if values.scope != "vocabulary"}
