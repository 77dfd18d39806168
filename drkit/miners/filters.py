"""Filters: by score or rank, and by reading the passages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drkit.core.protocols import Corpus
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.answers import answer_tokens, read_answers, spaced_tokens
from drkit.data.rows import batched, require_file
from drkit.errors import DrkitError
from drkit.miners.chain import contents, keep_candidates
from drkit.miners.specs import (
    CrossEncoderFilterConfig,
    HasAnswerConfig,
    MarginConfig,
    MaxScoreConfig,
    RanksConfig,
    SameTextConfig,
    parse_ranks,
)

_QUERIES_PER_BATCH = 64
_Pair = tuple[MiningRequest, Mined]


class MarginFilter:
    """Drops candidates that the source scores too close to the query's positive: they may answer the query.

    With `absolute`, drops candidates that score above the positive's score minus `absolute`. Otherwise, drops those
    above `share` of the positive's score p; the threshold `p - (1 - share) |p|` is below p even if p is negative. With
    several positives, `positive` says which one counts. If the source scored none, nothing is dropped.
    Source: Moreira et al. 2024.
    """

    def __init__(self, config: MarginConfig, _context: BuildContext | None = None) -> None:
        self.config = config

    def keep(self, mined: Iterable[_Pair], corpus: Corpus) -> Iterator[Mined]:  # noqa: ARG002
        """Yield the candidates that score low enough; the others are counted as `margin`."""
        for _, found in mined:
            highest = self.threshold(found.positive_scores)
            yield keep_candidates(found, [highest is None or score <= highest for score in found.scores], "margin")

    def threshold(self, positive_scores: Mapping[str, float]) -> float | None:
        """Return the highest score that is kept, or None if no positive has a score.

        >>> MarginFilter(MarginConfig(share=0.75)).threshold({"a": 8.0, "b": -8.0})
        6.0
        >>> MarginFilter(MarginConfig(share=0.75, positive="min")).threshold({"a": 8.0, "b": -8.0})
        -10.0
        """
        if not positive_scores:
            return None
        choose = max if self.config.positive == "max" else min
        score = choose(positive_scores.values())
        if self.config.absolute is not None:
            return score - self.config.absolute
        return score - (1 - self.config.share) * abs(score)


class MaxScoreFilter:
    """Drops candidates that the source scores above a fixed number, regardless of the positives."""

    def __init__(self, config: MaxScoreConfig, _context: BuildContext | None = None) -> None:
        self.maximum = config.maximum

    def keep(self, mined: Iterable[_Pair], corpus: Corpus) -> Iterator[Mined]:  # noqa: ARG002
        """Yield the candidates that score low enough; the others are counted as `max-score`."""
        for _, found in mined:
            yield keep_candidates(found, [score <= self.maximum for score in found.scores], "max-score")


class RanksFilter:
    """Keeps the candidates from a first to a last rank, both included, counted from 1.

    The source drops judged positives before ranks are counted.
    """

    def __init__(self, config: RanksConfig, _context: BuildContext | None = None) -> None:
        self.first, self.last = parse_ranks(config.keep)

    def candidate_depth(self, depth: int) -> int:  # noqa: ARG002
        """Return the last rank that is kept."""
        return self.last

    def keep(self, mined: Iterable[_Pair], corpus: Corpus) -> Iterator[Mined]:  # noqa: ARG002
        """Yield the candidates between the two ranks; the others are counted as `ranks`."""
        for _, found in mined:
            ranks = range(1, len(found.doc_ids) + 1)
            yield keep_candidates(found, [self.first <= rank <= self.last for rank in ranks], "ranks")


class SameTextFilter:
    """Drops candidates with the same content as a judged positive, white space aside: copies under another id.

    Memory: the passages of 64 queries.
    """

    def __init__(self, config: SameTextConfig, _context: BuildContext | None = None) -> None:
        self.config = config

    def keep(self, mined: Iterable[_Pair], corpus: Corpus) -> Iterator[Mined]:
        """Yield the candidates whose text differs from the positives'; the others are counted as `same-text`."""
        for batch in batched(mined, _QUERIES_PER_BATCH):
            texts = {doc_id: self._normalized(text) for doc_id, text in contents(corpus, _named_ids(batch)).items()}
            for request, found in batch:
                positives = {texts[doc_id] for doc_id in request.positives if doc_id in texts}
                different = [texts.get(doc_id) not in positives for doc_id in found.doc_ids]
                yield keep_candidates(found, different, "same-text")

    def _normalized(self, content: str) -> str:
        text = " ".join(content.split())
        return text.casefold() if self.config.ignore_case else text


class HasAnswerFilter:
    """Drops candidates that contain an answer of the query: the same tokens in a row, as in DPR's answer matching.

    A passage is its title and text; `drkit.data.answers` says what a token is. The answers are those of the queries, or
    of a file. Memory: the answers of the file, and the passages of 64 queries.
    Source: Karpukhin et al. 2020, section 3.2.

    Raises DrkitError for a row of the file without the id of a query or its answers, and a query without answers.
    """

    def __init__(self, config: HasAnswerConfig, _context: BuildContext | None = None) -> None:
        self.path = require_file(config.path, "has-answer") if config.path else None
        self._answers = read_answers(self.path) if self.path else None

    def keep(self, mined: Iterable[_Pair], corpus: Corpus) -> Iterator[Mined]:
        """Yield the candidates without an answer; the others are counted as `has-answer`."""
        for batch in batched(mined, _QUERIES_PER_BATCH):
            found_ids = (doc_id for _, found in batch for doc_id in found.doc_ids)
            texts = {doc_id: spaced_tokens(text) for doc_id, text in contents(corpus, found_ids).items()}
            for request, found in batch:
                answers = self._answer_tokens(request)
                kept = [not any(answer in texts[doc_id] for answer in answers) for doc_id in found.doc_ids]
                yield keep_candidates(found, kept, "has-answer")

    def _answer_tokens(self, request: MiningRequest) -> list[str]:
        answers = request.answers if self._answers is None else self._answers.get(request.query_id)
        if answers is None and self.path:
            raise DrkitError(f"{self.path} has no answers of the query {request.query_id!r}; add a row for it")
        if answers is None:
            raise DrkitError(
                f"has-answer: the query {request.query_id!r} of the collection has no answers; add them to its row "
                f"(answers, a list of texts), or give a file: has-answer:PATH"
            )
        return answer_tokens(answers)


class QueryTextFilter:
    """Drops candidates whose text equals the query's, as in collections of duplicate questions."""

    def keep(self, mined: Iterable[_Pair], corpus: Corpus) -> Iterator[Mined]:
        """Yield the candidates whose text differs from the query's; the others are counted as `query-itself`."""
        for request, found in mined:
            passages = corpus.get_many(found.doc_ids)
            yield keep_candidates(found, [passage.content != request.text for passage in passages], "query-itself")


class CrossEncoderFilter:
    """Drops candidates that a cross-encoder takes for an answer: false negatives ("denoising" in RocketQA).

    Drops candidates that it scores above the positive's score minus `margin`, and those above `maximum`, both in the
    model's own scores. With several positives, `positive` says which one counts. If no positive of the query is in the
    corpus, only `maximum` applies. The pairs of 64 queries are scored at once.
    Source: Qu et al. 2021, section 3.2.
    """

    def __init__(self, config: CrossEncoderFilterConfig, context: BuildContext | None = None) -> None:
        self.config = config
        self._reranker = _reranker(config.model, context)

    def queries_per_batch(self, depth: int) -> int:  # noqa: ARG002
        """Return how many queries' pairs are scored together."""
        return _QUERIES_PER_BATCH

    def keep(self, mined: Iterable[_Pair], corpus: Corpus) -> Iterator[Mined]:
        """Yield the candidates that score low enough; the others are counted as `cross-encoder`."""
        for batch in batched(mined, _QUERIES_PER_BATCH):
            scores = self._scores(batch, contents(corpus, _named_ids(batch)))
            for index, (request, found) in enumerate(batch):
                highest = self._threshold([scores[index, d] for d in request.positives if (index, d) in scores])
                low = [scores.get((index, doc_id), -math.inf) <= highest for doc_id in found.doc_ids]
                yield keep_candidates(found, low, "cross-encoder")

    def _scores(self, batch: Sequence[_Pair], texts: Mapping[str, str]) -> dict[tuple[int, str], float]:
        """Return the scores of candidates and positives by (index of the query in the batch, passage id)."""
        pairs = [
            (index, doc_id)
            for index, (request, found) in enumerate(batch)
            for doc_id in (*sorted(request.positives), *found.doc_ids)
            if found.doc_ids and doc_id in texts
        ]
        if not pairs:
            return {}
        scores = self._reranker.score([(batch[index][0].text, texts[doc_id]) for index, doc_id in pairs])
        return {pair: float(score) for pair, score in zip(pairs, scores, strict=True)}

    def _threshold(self, positives: Sequence[float]) -> float:
        highest = math.inf if self.config.maximum is None else self.config.maximum
        if not positives or self.config.margin is None:
            return highest
        choose = max if self.config.positive == "max" else min
        return min(highest, choose(positives) - self.config.margin)


def _named_ids(batch: Sequence[_Pair]) -> Iterator[str]:
    """Yield the ids of the positives and candidates of a batch."""
    return (doc_id for request, found in batch for doc_id in (*sorted(request.positives), *found.doc_ids))


def _reranker(model: str, context: BuildContext | None) -> Any:
    if model:
        from drkit.search import Reranker

        return Reranker.load(model)
    if context is None or context.reranker is None:
        raise DrkitError(
            "cross-encoder-filter needs a cross-encoder to score with: name a path or hub id "
            "(cross-encoder-filter:MODEL, or --reranker MODEL), or pass BuildContext(reranker=...) in Python"
        )
    return context.reranker
