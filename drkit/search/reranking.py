"""Re-rank: a cross-encoder reads each query together with the passages that a first search found."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from attrs.validators import ge, in_
from numpy.typing import NDArray

from drkit.core.files import local_path
from drkit.core.protocols import PairScorer
from drkit.data.corpus import StoredCorpus
from drkit.encoders.cross_encoder import CrossEncoder
from drkit.encoders.cross_encoder_folder import unsupported_layout
from drkit.encoders.folder import BFLOAT16, PRECISIONS
from drkit.encoders.modular_cross_encoder import ModularCrossEncoder
from drkit.errors import DrkitError
from drkit.search.fusion import Searcher, find_rankings
from drkit.search.rankings import Hits, Rankings, RunRow, in_blocks
from drkit.search.text_encoder import choose_device, inference, length_sorted_batches

_LOGGER = logging.getLogger("drkit")
WINDOW = 16_384
_Pair = tuple[str, str]
_Row = tuple[str, list[tuple[str, float]]]


@attrs.frozen(eq=False)
class Reranker:
    """A trained cross-encoder that scores pairs of texts.

    token_budget: tokens per batch, padding included. precision: `float32`, or `bfloat16` for matrix products only
    (autocast): faster on a GPU, slightly less accurate. A pair that is longer than the model's `max_length` is
    truncated as by sentence-transformers: mostly the passage, the query only beyond half of it. Scores are the raw
    output of the head, without a sigmoid. `float32` leaves the weights of a `ModularCrossEncoder` in the precision that
    they were saved in.
    """

    model: CrossEncoder | ModularCrossEncoder
    token_budget: int = attrs.field(default=16_384, validator=ge(1))
    precision: str = attrs.field(default="float32", validator=in_(PRECISIONS))

    @classmethod
    def load(
        cls,
        folder_or_id: str | Path,
        device: str | torch.device = "cpu",
        *,
        token_budget: int = 16_384,
        precision: str = "float32",
    ) -> Reranker:
        """Load a re-ranker of drkit or a `CrossEncoder` of sentence-transformers, from a folder or the hub.

        device: a torch device, or `auto` for a GPU if available. In a folder with modules, prompts or templates that
        drkit does not compute itself, such as a causal re-ranker, sentence-transformers computes the scores.

        Raises DrkitError if it is missing, or gives more than one score per pair.
        """
        model = _load(folder_or_id).to(choose_device(device))
        return cls(model.eval(), token_budget=token_budget, precision=precision)

    def identity(self) -> dict[str, Any]:
        """Return what the scores depend on, as plain data; see `CrossEncoder.identity`."""
        return {**self.model.identity(), "precision": self.precision}

    def score(self, pairs: Sequence[_Pair]) -> NDArray[np.float32]:
        """Return the scores f32[n] of n (query, passage) pairs; higher is better. Texts may be empty."""
        scores = [self._window(pairs[start : start + WINDOW]) for start in range(0, len(pairs), WINDOW)]
        return np.concatenate(scores) if scores else np.empty(0, dtype=np.float32)

    def _window(self, pairs: Sequence[_Pair]) -> NDArray[np.float32]:
        tokens: Any = self.model.pairs
        queries, passages = (tokens.encode(texts) for texts in zip(*pairs, strict=True))
        scores = np.empty(len(pairs), dtype=np.float32)
        device = next(self.model.parameters()).device
        with inference(self.model), torch.autocast(device.type, torch.bfloat16, enabled=self.precision == BFLOAT16):
            for positions in length_sorted_batches(tokens.lengths(queries, passages), self.token_budget):
                batch = tokens.batch([queries[p] for p in positions], [passages[p] for p in positions])
                outputs = self.model(**{name: _on(device, value) for name, value in batch.items()})
                scores[positions] = outputs.float().cpu().numpy()
        return scores


def _load(folder_or_id: str | Path) -> CrossEncoder | ModularCrossEncoder:
    folder = local_path(folder_or_id)
    if reason := unsupported_layout(folder):
        _LOGGER.info("sentence-transformers computes the scores: %s", reason)
        return ModularCrossEncoder.load(folder)
    return CrossEncoder.load(str(folder_or_id))


def _on(device: torch.device, value: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


class CrossEncoderScorer:
    """A `CrossEncoder` of sentence-transformers as a scorer of pairs: for re-ranking, filtering, or as a teacher.

    Its scores are raw, without a sigmoid, like those of a `Reranker`. Raises DrkitError for several scores per pair.
    """

    def __init__(self, model: Any, *, batch_size: int = 64) -> None:
        if getattr(model, "num_labels", 1) != 1:
            raise DrkitError(f"expected a cross-encoder with one score per pair, got {model.num_labels} scores")
        self.model, self.batch_size = model, batch_size

    def score(self, pairs: Sequence[_Pair]) -> NDArray[np.float32]:
        """Return the scores f32[n] of n (query, passage) pairs; higher is better."""
        if not pairs:
            return np.empty(0, dtype=np.float32)
        raw, texts = torch.nn.Identity(), [list(pair) for pair in pairs]
        scores = self.model.predict(texts, batch_size=self.batch_size, activation_fn=raw, show_progress_bar=False)
        return np.asarray(scores, dtype=np.float32)


def as_scorer(given: Any) -> PairScorer:
    """Return a scorer for a cross-encoder's folder or hub id, a `CrossEncoder`, or a scorer, returned unchanged.

    Raises DrkitError for anything else, and as `Reranker.load` does.
    """
    if isinstance(given, (str, Path)):
        return Reranker.load(given)
    if isinstance(given, PairScorer):
        return given
    if hasattr(given, "predict"):
        return CrossEncoderScorer(given)
    raise DrkitError(
        f"{type(given).__name__} cannot score pairs; give a cross-encoder's folder or hub id, a CrossEncoder of "
        f"sentence-transformers, or an object with score(pairs)"
    )


def rerank(
    rows: Iterable[RunRow],
    scorer: PairScorer,
    *,
    queries: Mapping[str, str],
    corpus: StoredCorpus | Mapping[str, str],
    depth: int = 200,
    missing: Counter[str] | None = None,
) -> Iterator[_Row]:
    """Re-rank the first `depth` passages of every query by their scores; the others keep their order below them.

    rows: a run, as `drkit.search.read_run` returns it. queries: texts by query id. corpus: a stored corpus
    (`drkit.data.open_collection(folder).corpus`), or passage texts by id. Rows are yielded best first; passages below
    the depth get descending scores below the re-ranked ones, so that a run file keeps their order. A passage missing
    from the corpus is ranked below those that were scored, and a query without a text keeps its ranking; `missing`
    counts both (`queries`, `passages`). Memory: a few thousand pairs at a time.

    Raises DrkitError for a score that is not finite, and for `depth` below 1.

    >>> class Longest:
    ...     def score(self, pairs):
    ...         return np.array([len(passage) for _, passage in pairs], dtype=np.float32)
    >>> run = [("q", [("d1", 3.0), ("d2", 2.0), ("d3", 1.0)])]
    >>> texts = {"d1": "short", "d2": "not so short", "d3": "the longest of all"}
    >>> list(rerank(run, Longest(), queries={"q": "?"}, corpus=texts, depth=2))
    [('q', [('d2', 12.0), ('d1', 5.0), ('d3', 4.0)])]
    """
    if depth < 1:
        raise DrkitError(f"depth must be at least 1, got {depth}")
    counts = Counter[str]() if missing is None else missing
    for block in in_blocks(rows, max(1, WINDOW // depth)):
        ranked = block.ordered()
        heads = {query_id: ranked.names(row, depth) for row, query_id in enumerate(ranked.query_ids)}
        texts = {query_id: _texts(names, corpus) for query_id, names in heads.items() if query_id in queries}
        pairs = [(queries[query_id], text) for query_id, own in texts.items() for text in own.values()]
        scores = iter(scorer.score(pairs).tolist() if pairs else [])
        scored = {query_id: {doc_id: next(scores) for doc_id in own} for query_id, own in texts.items()}
        counts["queries"] += len(heads) - len(texts)
        counts["passages"] += sum(len(heads[query_id]) - len(own) for query_id, own in texts.items())
        yield from Rankings.of(
            (query_id, _rescored(query_id, hits, scored.get(query_id, {}))) for query_id, hits in ranked
        ).ordered()


@attrs.frozen(eq=False)
class RerankedRetriever:
    """Searches with a retriever of any kind, and re-ranks its first `depth` hits (`rerank`)."""

    first: Searcher
    scorer: PairScorer
    corpus: StoredCorpus | Mapping[str, str]
    depth: int = 200

    def __len__(self) -> int:
        return len(self.first)

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text, best first. Raises DrkitError for an empty text."""
        return self.rankings([*map(str, range(len(texts)))], texts, depth).hits()

    def rankings(self, query_ids: Sequence[str], texts: Sequence[str], depth: int) -> Rankings:
        """Return what `search` returns, as arrays."""
        found = find_rankings(self.first, query_ids, texts, max(depth, self.depth))
        queries = dict(zip(query_ids, texts, strict=True))
        return Rankings.of(rerank(found, self.scorer, queries=queries, corpus=self.corpus, depth=self.depth)).top(depth)


def _rescored(query_id: str, hits: list[tuple[str, float]], scores: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Return the hits of a query with their scores, and the others below them in their order."""
    if not scores:
        return hits
    wrong = next((doc_id for doc_id, score in scores.items() if not np.isfinite(score)), None)
    if wrong is not None:
        raise DrkitError(
            f"query {query_id!r}: the re-ranker's score of {wrong!r} is {scores[wrong]}, which is not finite; "
            f"its training may have diverged"
        )
    below = [doc_id for doc_id, _ in hits if doc_id not in scores]
    floor = min(scores.values())
    step = max(1.0, 4 * float(np.spacing(np.float32(abs(floor) + len(below)))))
    return [*scores.items(), *((doc_id, floor - number * step) for number, doc_id in enumerate(below, start=1))]


def _texts(doc_ids: Sequence[str], corpus: StoredCorpus | Mapping[str, str]) -> dict[str, str]:
    """Return the texts of these passages, as far as the corpus has them."""
    if isinstance(corpus, Mapping):
        return {doc_id: corpus[doc_id] for doc_id in doc_ids if doc_id in corpus}
    positions = corpus.find(doc_ids)
    found = [doc_id for doc_id, position in zip(doc_ids, positions, strict=True) if position >= 0]
    return {doc_id: p.content for doc_id, p in zip(found, corpus.at(positions[positions >= 0]), strict=True)}
