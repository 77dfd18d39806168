"""Filters that read the passages: copies of a positive, and what a cross-encoder takes for an answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.miners.chain import left
from drkit.miners.config import CrossEncoderFilterConfig, SameTextConfig
from drkit.miners.known import KnownIds
from drkit.search.retrieve import batched

QUERIES = 64
Pair = tuple[MiningRequest, Mined]


class SameTextFilter:
    """Drops candidates whose content is that of a judged positive, white space aside: copies under another id.

    Memory: the passages of 64 queries.
    """

    def __init__(self, config: SameTextConfig, context: BuildContext | None = None) -> None:  # noqa: ARG002
        self.config = config

    def keep(self, mined: Iterable[Pair], corpus: Corpus) -> Iterator[Mined]:
        """What reads otherwise than the positives; the others are counted as `same-text`."""
        known = KnownIds(corpus)
        for batch in batched(mined, QUERIES):
            contents = _contents(batch, corpus, known)
            texts = {doc_id: self._plain(content) for doc_id, content in contents.items()}
            for request, found in batch:
                answers = {texts[doc_id] for doc_id in request.positives if doc_id in texts}
                yield left(found, [texts.get(doc_id) not in answers for doc_id in found.doc_ids], "same-text")

    def _plain(self, content: str) -> str:
        text = " ".join(content.split())
        return text.casefold() if self.config.ignore_case else text


class CrossEncoderFilter:
    """Drops candidates that a cross-encoder takes for an answer: false negatives, "denoised" in RocketQA's words.

    Those it scores above the positive's score (of several, `positive` says which) minus `margin`, and those above
    `maximum`, in the model's own scores. A query with no positive in the corpus has the second test alone.
    The pairs of 64 queries are scored at once. Qu et al. 2021, section 3.2.
    """

    def __init__(self, config: CrossEncoderFilterConfig, context: BuildContext | None = None) -> None:
        self.config = config
        self._reranker = _reranker(config.model, context)

    def keep(self, mined: Iterable[Pair], corpus: Corpus) -> Iterator[Mined]:
        """What scores low enough; the others are counted as `cross-encoder`."""
        known = KnownIds(corpus)
        for batch in batched(mined, QUERIES):
            scores = self._scores(batch, _contents(batch, corpus, known))
            for place, (request, found) in enumerate(batch):
                most = self._threshold([scores[place, d] for d in request.positives if (place, d) in scores])
                yield left(found, [scores.get((place, d), -math.inf) <= most for d in found.doc_ids], "cross-encoder")

    def _scores(self, batch: Sequence[Pair], contents: Mapping[str, str]) -> dict[tuple[int, str], float]:
        """Scores by place in the batch and passage, of candidates and positives."""
        asked = [
            (place, doc_id)
            for place, (request, found) in enumerate(batch)
            for doc_id in (*sorted(request.positives), *found.doc_ids)
            if found.doc_ids and doc_id in contents
        ]
        if not asked:
            return {}
        scores = self._reranker.score([(batch[place][0].text, contents[doc_id]) for place, doc_id in asked])
        return {pair: float(score) for pair, score in zip(asked, scores, strict=True)}

    def _threshold(self, positives: Sequence[float]) -> float:
        most = math.inf if self.config.maximum is None else self.config.maximum
        if not positives or self.config.margin is None:
            return most
        choose = max if self.config.positive == "max" else min
        return min(most, choose(positives) - self.config.margin)


def _contents(batch: Sequence[Pair], corpus: Corpus, known: KnownIds) -> dict[str, str]:
    """The contents of all passages that a batch names and the corpus has."""
    named = list(dict.fromkeys(d for request, found in batch for d in (*sorted(request.positives), *found.doc_ids)))
    present = [doc_id for doc_id, there in zip(named, known(named), strict=True) if there]
    passages = corpus.get_many(present) if present else []
    return {passage.doc_id: passage.content for passage in passages}


def _reranker(model: str, context: BuildContext | None) -> Any:
    if model:
        from drkit.search import Reranker

        return Reranker.load(model)
    if context is None or context.reranker is None:
        raise DrkitError(
            "the cross-encoder-filter has nothing to score with; name a cross-encoder by path or hub id "
            "(cross-encoder-filter:MODEL, or --reranker MODEL), or give BuildContext(reranker=...) in Python"
        )
    return context.reranker
