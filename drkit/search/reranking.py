"""Ranking anew: a cross-encoder reads each query together with the passages that a first search found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs
import numpy as np
import torch
from attrs.validators import ge, in_

from drkit.encoders.cross_encoder import CrossEncoder
from drkit.errors import DrkitError
from drkit.search.encode import choose_device, inference, length_sorted_batches
from drkit.search.hits import batched
from drkit.search.trec import encode_id

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.data.corpus import StoredCorpus
    from drkit.search.trec import RunRow

WINDOW = 16_384
Pair = tuple[str, str]
Row = tuple[str, list[tuple[str, float]]]


class Scorer(Protocol):
    """Anything that scores pairs of texts: a `Reranker`, or your own."""

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """f32[n]: a score of each (query, passage), higher is better."""


@attrs.frozen(eq=False)
class Reranker:
    """A trained cross-encoder that scores pairs of texts.

    token_budget: tokens, padding included, that go through the model at once. precision: `float32`, or `bfloat16` for
    the matrix products alone (autocast): faster on a GPU, scores a little off. The query stands whole, the passage is
    cut to what the model's `max_length` leaves. Scores are the raw output of the head: no sigmoid.
    """

    model: CrossEncoder
    token_budget: int = attrs.field(default=16_384, validator=ge(1))
    precision: str = attrs.field(default="float32", validator=in_(("float32", "bfloat16")))

    @classmethod
    def load(
        cls,
        folder_or_id: str | Path,
        device: str | torch.device = "cpu",
        *,
        token_budget: int = 16_384,
        precision: str = "float32",
    ) -> Reranker:
        """A re-ranker of drkit or a `CrossEncoder` of sentence-transformers, from a folder or the hub.

        device: as torch names it; `auto`: a GPU where there is one.

        Raises DrkitError where there is none, or it gives more than one score a pair.
        """
        model = CrossEncoder.load(str(folder_or_id)).to(choose_device(device))
        return cls(model.eval(), token_budget=token_budget, precision=precision)

    def score(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        """f32[n]: the scores of n (query, passage) pairs, higher is better; empty texts are scored like any other."""
        scores = [self._window(pairs[start : start + WINDOW]) for start in range(0, len(pairs), WINDOW)]
        return np.concatenate(scores) if scores else np.empty(0, dtype=np.float32)

    def _window(self, pairs: Sequence[Pair]) -> NDArray[np.float32]:
        tokens = self.model.pairs
        queries, passages = (tokens.encode(texts) for texts in zip(*pairs, strict=True))
        scores = np.empty(len(pairs), dtype=np.float32)
        device = next(self.model.parameters()).device
        with inference(self.model), torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            for places in length_sorted_batches(tokens.lengths(queries, passages), self.token_budget):
                batch = tokens.batch([queries[p] for p in places], [passages[p] for p in places])
                made = self.model(**{name: tensor.to(device) for name, tensor in batch.items()})
                scores[places] = made.float().cpu().numpy()
        return scores


def rerank(
    rows: Iterable[RunRow],
    scorer: Scorer,
    *,
    queries: Mapping[str, str],
    corpus: StoredCorpus | Mapping[str, str],
    depth: int = 200,
    missing: Counter[str] | None = None,
) -> Iterator[Row]:
    """Rank the first `depth` passages of every query anew, by their scores; the others stay below, in their order.

    rows: a run, as `drkit.search.read_run` gives it. queries: texts by query id. corpus: a stored one
    (`drkit.data.open_collection(folder).corpus`), or the passages' texts by id. Rows come out best first; passages
    below the depth get scores below, one after the other, so that a run file keeps their order. A passage that the
    corpus does not have stands below those that were scored, and a query without a text keeps its ranking; `missing`
    counts both (`queries`, `passages`). Memory: some thousand pairs at a time.

    Raises DrkitError for a score that is no finite number, and for `depth` below 1.

    >>> class Longest:
    ...     def score(self, pairs):
    ...         return np.array([len(passage) for _, passage in pairs], dtype=np.float32)
    >>> run = [("q", [("d1", 3.0), ("d2", 2.0), ("d3", 1.0)])]
    >>> texts = {"d1": "short", "d2": "not so short", "d3": "the longest of all"}
    >>> list(rerank(run, Longest(), queries={"q": "?"}, corpus=texts, depth=2))
    [('q', [('d2', 12.0), ('d1', 5.0), ('d3', 4.0)])]
    """
    if depth < 1:
        raise DrkitError(f"depth {depth}; rank at least one passage of each query anew")
    counts = Counter[str]() if missing is None else missing
    for some in batched(rows, max(1, WINDOW // depth)):
        heads = [_Head.of(query, list(hits), depth) for query, hits in some]
        asked = [head for head in heads if head.query_id in queries]
        counts["queries"] += len(heads) - len(asked)
        texts = [_texts(head, corpus) for head in asked]
        pairs = [
            (queries[head.query_id], text) for head, own in zip(asked, texts, strict=True) for text in own.values()
        ]
        scores = iter(scorer.score(pairs).tolist() if pairs else [])
        scored = {h.query_id: {doc_id: next(scores) for doc_id in own} for h, own in zip(asked, texts, strict=True)}
        counts["passages"] += sum(len(head.best) - len(scored[head.query_id]) for head in asked)
        yield from ((head.query_id, head.ranked(scored.get(head.query_id, {}))) for head in heads)


@attrs.frozen(eq=False)
class _Head:
    """A query's ranking in the order in which trec_eval reads it, cut in two."""

    query_id: str
    best: list[tuple[str, float]]
    rest: list[tuple[str, float]]

    @classmethod
    def of(cls, query_id: str, hits: list[tuple[str, float]], depth: int) -> _Head:
        ordered = in_order(hits)
        return cls(query_id, ordered[:depth], ordered[depth:])

    def ranked(self, scores: Mapping[str, float]) -> list[tuple[str, float]]:
        """The whole ranking: what has a score by it, then the others in their order."""
        if not scores:
            return [*self.best, *self.rest]
        wrong = next((doc_id for doc_id, score in scores.items() if not np.isfinite(score)), None)
        if wrong is not None:
            raise DrkitError(
                f"query {self.query_id!r}: the re-ranker's score of {wrong!r} is {scores[wrong]}, no finite number; "
                f"its training may have diverged"
            )
        first = in_order(scores.items())
        below = [doc_id for doc_id, _ in (*self.best, *self.rest) if doc_id not in scores]
        floor = first[-1][1]
        step = max(1.0, 4 * float(np.spacing(np.float32(abs(floor) + len(below)))))
        return [*first, *((doc_id, floor - place * step) for place, doc_id in enumerate(below, start=1))]


def in_order(hits: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Hits as trec_eval orders them: by score, ties by document id, the last id first.

    >>> in_order([("a", 1.0), ("b", 1.0), ("c", 2.0)])
    [('c', 2.0), ('b', 1.0), ('a', 1.0)]
    """
    return sorted(hits, key=_order, reverse=True)


def _order(hit: tuple[str, float]) -> tuple[np.float32, str]:
    return np.float32(hit[1]), encode_id(hit[0])


def _texts(head: _Head, corpus: StoredCorpus | Mapping[str, str]) -> dict[str, str]:
    """What is to be read of each of the best passages that the corpus has."""
    doc_ids = [doc_id for doc_id, _ in head.best]
    if isinstance(corpus, Mapping):
        return {doc_id: corpus[doc_id] for doc_id in doc_ids if doc_id in corpus}
    places = corpus.find(doc_ids)
    there = [doc_id for doc_id, place in zip(doc_ids, places, strict=True) if place >= 0]
    return {doc_id: p.content for doc_id, p in zip(there, corpus.at(places[places >= 0]), strict=True)}
