"""Stages that make queries from texts.

`queries` are the candidate queries of every text that pre-training reads, as contexts: from a file, from a model, or
extractive. `pseudo-queries` are training pairs made from the passages, kept if a retriever finds the passage again;
they have the form of a split of the collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from drkit.core.files import local_path, path_state
from drkit.core.hub import check_model_path
from drkit.core.settings import QuerySettings
from drkit.core.spec import Choice, Kind, is_stage_output
from drkit.data.column_sources import source_name
from drkit.data.query_sources import EXTRACTIVE, QUERY_FILE, QUERY_MODEL, SENTENCES, brief_sources
from drkit.data.splits import PSEUDO
from drkit.encoders.card import EncoderCard, PassageReading
from drkit.errors import DrkitError
from drkit.recipe.parts import FOR_EXTRACTIVE, required_signals
from drkit.recipe.pseudo_queries import PseudoQueries
from drkit.runs.stage import PlanBuilder, Stage, StageOutput, StageSpec, files_state, from_recipe, settings_from
from drkit.runs.stages.retriever import vectors_memory, words_memory
from drkit.runs.stages.texts import (
    PASSAGES,
    QUERY_TOKENS,
    SPANS,
    TOKENS,
    VALUES,
    VOCABULARY,
    passages_of_pretraining,
    plan_signal,
    pretraining_texts,
    split_of,
    tokens_of_pretraining,
)
from drkit.runs.work import Sizes, Work


@frozen
class CandidateSettings:
    """The source of queries (`extractive`, `file:PATH`, `model:PATH_OR_ID`) and their number per text."""

    queries: str
    candidates: int
    prefix: str
    max_length: int = from_recipe("encoder.query_length")
    passage_length: int = from_recipe("encoder.passage_length")
    seed: int = from_recipe("seed")


CONTEXT_QUERIES = StageSpec(
    name="queries",
    version=2,
    settings=CandidateSettings,
    run="drkit.runs.making.queries:make_candidates",
    libraries=("tokenizers", "regex"),
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
    """Where queries come from, and which are kept.

    texts: how passages are read. reading: how the encoder of the round trip reads texts, None if the round trip does
    not search with one. language: of BM25, None if the round trip does not search with it. passages, held_out: see
    `PseudoQueries`.
    """

    texts: PassageReading
    reading: EncoderCard | None
    language: str | None
    sources: tuple[Choice, ...] = from_recipe("pseudo_queries.sources", written=brief_sources)
    count: int = from_recipe("pseudo_queries.count")
    prefix: str = from_recipe("pseudo_queries.prefix")
    round_trip: int = from_recipe("pseudo_queries.round_trip")
    found_by: tuple[str, ...] = from_recipe("pseudo_queries.found_by")
    passages: int | None = from_recipe("pseudo_queries.passages", absent_when=None)
    held_out: int | None = from_recipe("pseudo_queries.held_out", absent_when=None)
    seed: int = from_recipe("seed")

    @property
    def searches_with_bm25(self) -> bool:
        """Whether the round trip needs BM25."""
        return self.round_trip > 0 and "bm25" in self.found_by

    @property
    def extras(self) -> tuple[str, ...]:
        """The extras that the sources and the round trip need."""
        needed = {"bm25": self.searches_with_bm25, "nltk": any(one.use == SENTENCES for one in self.sources)}
        return tuple(extra for extra, is_needed in needed.items() if is_needed)


# Bytes of each query that is kept.
_QUERY_BYTES = 180


def _pseudo_work(stage: Stage[PseudoQuerySettings], sizes: Sizes) -> Work:
    settings = stage.settings
    made, kept = sizes.passages * settings.count * len(settings.sources), sizes.count(f"{PSEUDO_QUERIES.name}/{SPLIT}")
    found_by = settings.found_by if settings.round_trip else ()
    memory = words_memory(sizes) if settings.searches_with_bm25 else 0.0
    memory += vectors_memory(sizes) if "index" in stage.inputs else 0.0
    unit = f"queries from {', '.join(map(source_name, settings.sources))} found by {', '.join(found_by)}"
    return Work(made, unit, memory=memory, disk=_QUERY_BYTES * kept)


PSEUDO_QUERIES = StageSpec(
    name="pseudo-queries",
    version=4,
    settings=PseudoQuerySettings,
    run="drkit.runs.making.queries:make_pseudo_queries",
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


def training_split(builder: PlanBuilder, pairs: str) -> StageOutput:
    """Return the split that a round learns from: pseudo-queries, or the collection's labelled queries."""
    return StageOutput(PSEUDO_QUERIES.name, SPLIT) if pairs == PSEUDO else split_of(builder.labelled)


def plan_query_tokens(builder: PlanBuilder, pairs: str) -> StageOutput:
    """Add the stage that tokenises the queries that a round learns from, and return its output."""
    train = training_split(builder, pairs)
    inputs = {"queries": StageOutput(train.stage, f"{train.path}/queries.arrow"), "vocabulary": VOCABULARY}
    name, what = ("pseudo-query-tokens", "pseudo-query") if pairs == PSEUDO else ("query-tokens", "training query")
    return StageOutput(builder.add(name, QUERY_TOKENS, f"tokenise every {what} once", inputs))


def plan_contexts(
    builder: PlanBuilder, signals: Mapping[str, Choice], required: Mapping[str, Any]
) -> dict[str, StageOutput]:
    """Add the stages that make spans and candidate queries from the texts; returns the resulting inputs."""
    inputs = {"tokens": tokens_of_pretraining(builder)}
    if "spans" in required:
        documents = {"passages": passages_of_pretraining(builder), "vocabulary": VOCABULARY}
        inputs = {
            "spans": StageOutput(builder.add("spans", SPANS, "cut documents into spans of whole sentences", documents))
        }
    if "generated-queries" in required:
        importance = StageOutput(plan_signal(builder, signals[FOR_EXTRACTIVE], pretraining_texts(builder)), VALUES)
        settings = required["generated-queries"] or QuerySettings()
        inputs["queries"] = StageOutput(_plan_queries(builder, settings, {**inputs, "importance": importance}))
    return inputs


def _plan_queries(builder: PlanBuilder, settings: QuerySettings, texts: dict[str, StageOutput]) -> str:
    kind, _, source = settings.origin.partition(":")
    if kind == "file" and not local_path(source).is_file():
        raise DrkitError(f"the file of queries {source}, which a context names, does not exist @ pretrain")
    origins = {"file": f"read from {source}", "model": f"generated by {source}", "stage": f"read from {source}"}
    origin = origins.get(kind, "the text's best spans")
    passages = {} if kind == "extractive" else {"passages": passages_of_pretraining(builder)}
    made = {settings.origin: builder.output(settings.origin, "queries")} if is_stage_output(settings.origin) else {}
    return builder.add(
        "queries",
        CONTEXT_QUERIES,
        f"candidate queries: {origin}",
        {"vocabulary": VOCABULARY, **passages, **texts, **made},
        sources={"pretrain.queries": path_state(source) if not made else ""},
        extra={"queries": settings.origin, "candidates": settings.count, "prefix": settings.prefix},
    )


def plan_pseudo_queries(
    builder: PlanBuilder, settings: PseudoQueries, retriever: Mapping[str, StageOutput] | None = None
) -> str:
    """Add the stage that makes training queries from the passages, with the inputs that its sources read.

    retriever: `encoder` and `index` of the encoder that the round trip searches with, if it does.

    Raises DrkitError for a file or model that does not exist.
    """
    signals = required_signals(builder.recipe.pretrain, builder.registry)
    for source in settings.sources:
        if is_stage_output(getattr(source.config, "path", "")):
            continue
        if source.use == QUERY_FILE and not local_path(source.config.path).is_file():
            raise DrkitError(f"the file of queries {source.config.path} does not exist @ pseudo_queries.sources")
        if source.use == QUERY_MODEL:
            check_model_path(source.config.path)
    inputs = {"passages": PASSAGES, "vocabulary": VOCABULARY, **(retriever or {})}
    if any(source.use == EXTRACTIVE for source in settings.sources):
        default = Choice(FOR_EXTRACTIVE, builder.registry.get(Kind.SIGNAL, FOR_EXTRACTIVE).config())
        importance = plan_signal(builder, signals.get(FOR_EXTRACTIVE, default), TOKENS)
        inputs |= {"tokens": TOKENS, "importance": StageOutput(importance, VALUES)}
    return builder.add(
        PSEUDO_QUERIES.name,
        PSEUDO_QUERIES,
        f"training queries from the passages: {', '.join(map(source_name, settings.sources))}",
        inputs,
        sources=dict(_source_states(builder, settings)),
        extra={
            "texts": settings_from(PassageReading, builder.recipe),
            "reading": settings_from(EncoderCard, builder.recipe) if retriever else None,
            "language": builder.recipe.evaluation.bm25_language if "bm25" in settings.found_by else None,
        },
    )


def _source_states(builder: PlanBuilder, settings: PseudoQueries) -> Iterator[tuple[str, str]]:
    """Yield the state of the local files of each source that reads some, by its name."""
    for source in settings.sources:
        spec = builder.registry.get(Kind.QUERIES, source.use)
        if spec.files:
            yield f"pseudo_queries.{source_name(source)}", files_state(spec, source.config)
