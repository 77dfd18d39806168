"""Stages that make queries from texts.

`queries` are the candidate queries of every text that pre-training reads, as contexts: from a file, from a model, or
extractive. `pseudo-queries` are training pairs made from the passages, kept if a retriever finds the passage again;
they have the form of a split of the collection.
"""

from __future__ import annotations

from attrs import frozen

from drkit.runs.stage import Stage, StageSpec, TextReading, from_recipe
from drkit.runs.stages.retriever import bm25_seconds
from drkit.runs.work import Sizes, Work


@frozen
class QuerySettings:
    """The source of queries (`extractive`, `file:PATH`, `model:PATH_OR_ID`) and their number per text."""

    queries: str
    candidates: int
    prefix: str
    max_length: int = from_recipe("encoder.query_length")
    passage_length: int = from_recipe("encoder.passage_length")
    seed: int = from_recipe("seed")


QUERIES = StageSpec(
    name="queries",
    version=1,
    settings=QuerySettings,
    run="drkit.runs.steps.queries:make_candidates",
    inputs={
        "vocabulary": "the tokenizer",
        "passages": "the texts of queries from a file or model",
        "tokens": "the passages' tokens, without spans",
        "spans": "the spans' tokens, if documents are cut into spans",
        "importance": "importance of the texts' tokens, for extractive queries",
    },
    resumable=True,
    folders=("queries",),
)


SPLIT = "train"


@frozen
class PseudoQuerySettings:
    """Where queries come from, and which are kept; lengths and prompt are those with which passages are read.

    reading: how the encoder of the round trip reads texts, None if the round trip does not search with one. language:
    of BM25, None if the round trip does not search with it.
    """

    reading: TextReading | None
    language: str | None
    sources: tuple[str, ...] = from_recipe("pseudo_queries.sources")
    count: int = from_recipe("pseudo_queries.count")
    prefix: str = from_recipe("pseudo_queries.prefix")
    round_trip: int = from_recipe("pseudo_queries.round_trip")
    found_by: tuple[str, ...] = from_recipe("pseudo_queries.found_by")
    passage_length: int = from_recipe("encoder.passage_length")
    prompt: str = from_recipe("encoder.passage_prompt")
    seed: int = from_recipe("seed")

    @property
    def searches_with_bm25(self) -> bool:
        """Whether the round trip needs BM25."""
        return self.round_trip > 0 and "bm25" in self.found_by

    @property
    def extras(self) -> tuple[str, ...]:
        """The extras that the sources and the round trip need."""
        needed = {"bm25": self.searches_with_bm25, "nltk": "sentences" in self.sources}
        return tuple(extra for extra, is_needed in needed.items() if is_needed)


# Seconds for each query that is made, and bytes that are kept.
_MADE, _QUERY_BYTES = 2.5e-5, 180


def _pseudo_work(stage: Stage[PseudoQuerySettings], sizes: Sizes) -> Work:
    settings = stage.settings
    made = sizes.passages * settings.count * len(settings.sources)
    searched = bm25_seconds(made, sizes) if settings.searches_with_bm25 else 0.0
    return Work(seconds=_MADE * made + searched, disk=_QUERY_BYTES * made)


PSEUDO_QUERIES = StageSpec(
    name="pseudo-queries",
    version=3,
    settings=PseudoQuerySettings,
    run="drkit.runs.steps.queries:make_pseudo_queries",
    inputs={
        "passages": "the passages that queries are made from",
        "vocabulary": "the tokenizer, for extractive and generated queries",
        "tokens": "the passages' tokens, for extractive queries",
        "importance": "importance of these tokens",
        "encoder": "the encoder that the round trip searches with",
        "index": "its index",
    },
    work=_pseudo_work,
    resumable=True,
    folders=("pseudo-queries",),
)
