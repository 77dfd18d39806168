"""Contexts: for every text another one that the decoder rebuilds from it, drawn anew in every epoch.

`span`: another span of the same document (coCondenser, CoT-MAE). `query`: one of the text's candidate queries. `mixed`:
either, with probability 1/2 (Query-as-context, table 4). What a text gets depends on (seed, epoch, text) alone. A
context's tokens are read from its store as they are, so its mask is drawn on what the decoder rebuilds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from attrs import evolve, frozen

from drkit.core.draws import Draws
from drkit.core.types import TokenBatch, map_tensors
from drkit.data.importance import Importance
from drkit.data.queries import Queries
from drkit.data.spans import Spans
from drkit.data.store import TokenStore
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

KINDS = ("self", "span", "query", "mixed")
# Streams of their own, beside that of the masks: no run's seed is as large.
_SPAN, _QUERY, _COIN = (1 << 40, 2 << 40, 3 << 40)
_LARGE = 1 << 48


class Contexts(Protocol):
    """Another text for every text."""

    def batch(self, places: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """The contexts of the texts at these places, in this epoch; `keys` are the texts' own places."""


@frozen(eq=False)
class SpanContexts:
    """Another span of the same document; a span that is alone in its document is its own context."""

    store: TokenStore
    spans: Spans
    importance: Importance | None = None

    def batch(self, places: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """The contexts of the spans at these places."""
        first, count = self.spans.of(self.spans.documents[places])
        others = np.maximum(count - 1, 1)
        drawn = Draws(seed + _SPAN, epoch, places).integers(_LARGE) % others
        skip = (drawn >= places - first) & (count > 1)
        batch = self.store.batch(first + drawn + skip, pad_to=pad_to, importance=self.importance)
        return _of(places, batch)


@frozen(eq=False)
class QueryContexts:
    """One of the text's candidate queries."""

    queries: Queries
    importance: Importance | None = None

    def batch(self, places: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """The contexts of the texts at these places."""
        first = self.queries.offsets[places]
        count = self.queries.offsets[places + 1] - first
        drawn = Draws(seed + _QUERY, epoch, places).integers(_LARGE) % count
        return _of(places, self.queries.store.batch(first + drawn, pad_to=pad_to, importance=self.importance))


@frozen(eq=False)
class MixedContexts:
    """A query or a span, by a coin for every text and epoch (the paper throws it for every step)."""

    queries: QueryContexts
    spans: SpanContexts
    share: float = 0.5

    def batch(self, places: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """The contexts of the texts at these places: queries with probability `share`, else spans."""
        import torch

        heads = Draws(seed + _COIN, epoch, places).uniform() < self.share
        queries = self.queries.batch(places[heads], epoch, seed, pad_to)
        spans = self.spans.batch(places[~heads], epoch, seed, pad_to)
        order = np.argsort(np.concatenate([np.flatnonzero(heads), np.flatnonzero(~heads)]))
        rows = torch.from_numpy(order)
        return map_tensors(stacked(queries, spans, self.spans.store.pad_id), lambda tensor: tensor[rows])


def stacked(first: TokenBatch, second: TokenBatch, pad_id: int) -> TokenBatch:
    """The rows of both batches, one below the other, padded to the longer one; contexts are left behind."""
    import torch
    import torch.nn.functional as F

    fills = {"ids": pad_id, "attention": False, "maskable": False, "words": -1, "importance": 0.0}
    width = max(first.ids.shape[1], second.ids.shape[1])

    def joined(name: str) -> Tensor | None:
        parts = [getattr(batch, name) for batch in (first, second)]
        if any(part is None for part in parts):
            return None
        if name in fills:
            parts = [F.pad(part, (0, width - part.shape[1]), value=fills[name]) for part in parts]
        return torch.cat(parts)

    return TokenBatch(**{name: joined(name) for name in (*fills, "keys")})  # type: ignore[arg-type]


def _of(places: NDArray[np.int64], contexts: TokenBatch) -> TokenBatch:
    import torch

    return evolve(contexts, keys=torch.from_numpy(np.asarray(places, dtype=np.int64)))


def open_texts(inputs: Mapping[str, Path]) -> TokenStore:
    """The texts that pre-training reads: the spans of a run's documents where it has them, else its passages.

    inputs: the folders of a run's stages, by name. Raises DrkitError where there are neither.
    """
    if "spans" in inputs:
        return TokenStore.open(inputs["spans"])
    if "tokens" in inputs:
        return TokenStore.open(inputs["tokens"])
    raise DrkitError(f"no texts: neither 'spans' nor 'tokens' among the stages {', '.join(inputs) or 'given'}")


def open_importance(inputs: Mapping[str, Path]) -> Importance | None:
    """The importance of the tokens of `open_texts`, where the run has statistics."""
    return Importance.open(inputs["statistics"] / "importance") if "statistics" in inputs else None


def open_contexts(inputs: Mapping[str, Path], kind: str) -> Contexts | None:
    """The contexts of a kind (`self`, `span`, `query`, `mixed`) for the texts of `open_texts`; None for `self`.

    Their importance is attached where the run has statistics. Raises DrkitError where a stage that they need is
    missing, or there is no such kind.
    """
    if kind not in KINDS:
        raise DrkitError(f"no contexts {kind!r}; known: {', '.join(KINDS)}")
    needed = {"span": ("spans",), "query": ("queries",), "mixed": ("spans", "queries")}.get(kind, ())
    missing = [name for name in needed if name not in inputs]
    if missing:
        raise DrkitError(f"contexts {kind!r} need the stage {' and '.join(missing)} of the run, which is not there")
    if kind == "self":
        return None
    if kind == "span":
        return _span_contexts(inputs)
    if kind == "query":
        return _query_contexts(inputs)
    return MixedContexts(_query_contexts(inputs), _span_contexts(inputs))


def _span_contexts(inputs: Mapping[str, Path]) -> SpanContexts:
    return SpanContexts(open_texts(inputs), Spans.open(inputs["spans"]), open_importance(inputs))


def _query_contexts(inputs: Mapping[str, Path]) -> QueryContexts:
    queries = Queries.open(inputs["queries"])
    return QueryContexts(queries, queries.importance() if "statistics" in inputs else None)
