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
from attrs import evolve, field, fields, frozen

from drkit.core.draws import Draws
from drkit.core.types import TokenBatch, map_tensors
from drkit.data.queries import Queries
from drkit.data.signals import SignalValues
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
    signals: Mapping[str, SignalValues] = field(factory=dict)

    def batch(self, places: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """The contexts of the spans at these places."""
        first, count = self.spans.of(self.spans.documents[places])
        others = np.maximum(count - 1, 1)
        drawn = Draws(seed + _SPAN, epoch, places).integers(_LARGE) % others
        skip = (drawn >= places - first) & (count > 1)
        batch = self.store.batch(first + drawn + skip, pad_to=pad_to, signals=self.signals)
        return _of(places, batch)


@frozen(eq=False)
class QueryContexts:
    """One of the text's candidate queries."""

    queries: Queries
    signals: Mapping[str, SignalValues] = field(factory=dict)

    def batch(self, places: NDArray[np.int64], epoch: int, seed: int, pad_to: int | None = None) -> TokenBatch:
        """The contexts of the texts at these places."""
        first = self.queries.offsets[places]
        count = self.queries.offsets[places + 1] - first
        drawn = Draws(seed + _QUERY, epoch, places).integers(_LARGE) % count
        return _of(places, self.queries.store.batch(first + drawn, pad_to=pad_to, signals=self.signals))


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


# What stands at padding, beside `pad_id` in ids.
_PADDING = {"attention": False, "maskable": False, "words": -1}


def stacked(first: TokenBatch, second: TokenBatch, pad_id: int) -> TokenBatch:
    """The rows of both batches, one below the other, padded to the longer one; contexts are left behind.

    Raises DrkitError where one carries signals that the other does not.
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
        raise DrkitError(f"two batches are stacked, and only one of them carries the signal {', '.join(alone)}")
    signals = {
        name: torch.cat(_even((values, second.signals[name]), (first, second), 0.0))
        for name, values in first.signals.items()
    }
    return TokenBatch(**joined, signals=signals)  # type: ignore[arg-type]


def _even(values: tuple[Tensor, Tensor], batches: tuple[TokenBatch, TokenBatch], fill: float) -> list[Tensor]:
    """Both as wide as the longer batch, where there is a value a token; else as they are."""
    import torch.nn.functional as F

    lengths = [batch.ids.shape[1] for batch in batches]
    # Texts have as many values in both batches, tokens as many as their batch is long.
    if min(value.ndim for value in values) < 2 or [value.shape[1] for value in values] != lengths:
        return list(values)
    width = max(lengths)
    pads = [(0, 0) * (value.ndim - 2) + (0, width - value.shape[1]) for value in values]
    return [F.pad(value, pad, value=fill) for value, pad in zip(values, pads, strict=True)]


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


def open_signals(inputs: Mapping[str, Path], of: str = "signals") -> dict[str, SignalValues]:
    """The signals among a stage's inputs, by name.

    of: `signals` for those of the texts, `query-signals` for those of the queries that are contexts.
    """
    prefix = f"{of}/"
    return {name[len(prefix) :]: SignalValues.open(path) for name, path in inputs.items() if name.startswith(prefix)}


def open_contexts(inputs: Mapping[str, Path], kind: str) -> Contexts | None:
    """The contexts of a kind (`self`, `span`, `query`, `mixed`) for the texts of `open_texts`; None for `self`.

    They carry the signals that stand among the inputs. Raises DrkitError where a stage that they need is missing, or
    there is no such kind.
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
    return SpanContexts(open_texts(inputs), Spans.open(inputs["spans"]), carried(open_signals(inputs)))


def _query_contexts(inputs: Mapping[str, Path]) -> QueryContexts:
    return QueryContexts(Queries.open(inputs["queries"]), carried(open_signals(inputs, "query-signals")))


def carried(signals: Mapping[str, SignalValues]) -> dict[str, SignalValues]:
    """Those that a batch carries: of tokens and texts, not of the vocabulary."""
    return {name: values for name, values in signals.items() if values.scope != "vocabulary"}
