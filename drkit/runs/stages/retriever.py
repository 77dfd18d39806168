"""Stages around a retriever: choose and export one, and index its vectors.

`choice` is the retriever that the dev queries decide for; `export` writes the encoder folder that users load, and
`chosen-index` takes its index. `index` encodes all passages; `bm25` indexes their words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from drkit.core.quantities import counted
from drkit.core.spec import NoSettings
from drkit.encoders.card import EncoderCard
from drkit.errors import DrkitError
from drkit.evaluate.measures import cutoff
from drkit.evaluate.names import AS_IT_IS, INITIAL, system_in_words
from drkit.runs.stage import (
    WEIGHT_FILES,
    PlanBuilder,
    Stage,
    StageOutput,
    StageSpec,
    declared_card,
    from_recipe,
    settings_from,
)
from drkit.runs.stages.texts import PASSAGE_TOKENS, PASSAGES, TOKENS, split_of
from drkit.runs.work import Sizes, Work, reading_work

CHOICE, CHOSEN = "choice.json", "chosen.txt"


@frozen
class ChoiceSettings:
    """The retrievers to choose from, in the order of the table, and the measure that decides."""

    candidates: tuple[str, ...]
    measure: str
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    data_sets: tuple[str, ...] = from_recipe("data_sets", absent_when=())


def describe_choice(choice: Mapping[str, Any]) -> str:
    """Return in words which retriever is exported, and why.

    >>> choice = {"chosen": "as-it-is", "best": "r-1", "measure": "RR@10", "queries": 9, "gain": 0.01, "error": 0.02}
    >>> print(describe_choice({**choice, "values": {"as-it-is": 0.25, "r-1": 0.26}}))
    exported: the encoder as it is, on 9 dev queries (r-1 gains 0.010 RR@10, within one standard error, 0.020)
    >>> describe_choice({**choice, "chosen": "r-1", "values": {"as-it-is": 0.25, "r-1": 0.5}})
    'exported: r-1, best of 2 on 9 dev queries (RR@10 0.500)'
    """
    chosen, best, values, measure = (choice[key] for key in ("chosen", "best", "values", "measure"))
    asked = counted(choice["queries"], "dev query")
    if chosen == best:
        shown = f"best of {len(values)} on {asked} ({measure} {values[chosen]:.3f})"
        return f"exported: {system_in_words(chosen)}, {shown}"
    return (
        f"exported: {system_in_words(chosen)}, on {asked} ({system_in_words(best)} gains "
        f"{choice['gain']:.3f} {measure}, within one standard error, {choice['error']:.3f})"
    )


CHOOSE = StageSpec(
    name="choice",
    version=3,
    settings=ChoiceSettings,
    run="drkit.runs.making.retriever:choose",
    inputs={"judged": "the dev split of the collection", "runs": "the retrievers' rankings of the dev queries"},
    folders=("choice",),
)


@frozen
class ExportSettings:
    """How the exported encoder reads texts."""

    reading: EncoderCard


EXPORT = StageSpec(
    name="export",
    version=2,
    settings=ExportSettings,
    run="drkit.runs.making.retriever:export_chosen",
    inputs={"checkpoint/*": "a retriever's checkpoint", "choice": "which one is exported, if there are several"},
    folders=("encoder", AS_IT_IS),
    prunable=WEIGHT_FILES,
    work=lambda _stage, sizes: Work(disk=4.0 * sizes.encoder.weights),
)


@frozen
class IndexSettings:
    """How passages are encoded, and the kind of index; see `build_index`."""

    kind: str
    reading: EncoderCard


@frozen
class Bm25Settings:
    """Values of k1, b and split_queries.

    measure: decides between several of them on the dev queries, to this depth; None for one of each.
    """

    k1: tuple[float, ...]
    b: tuple[float, ...]
    measure: str | None
    depth: int
    exclude_self: bool
    split_queries: tuple[str, ...]
    language: str = from_recipe("evaluation.bm25_language")
    query_language: str = from_recipe("evaluation.bm25_query_language")
    data_sets: tuple[str, ...] = from_recipe("data_sets", absent_when=())


# Bytes of the vectors that are read into memory at most.
_FLAT_BYTES = 4 * 2**30
# Bytes for each token that BM25 indexes. Meanwhile, the words of all passages, the best index so far and the arrays of
# the next one are in memory (measured with a million passages).
_WORD_BYTES, _WORD_MEMORY = 4.7, 27.0


def _index_work(stage: Stage[IndexSettings], sizes: Sizes) -> Work:
    reading = stage.settings.reading
    length, most = reading.passage_length, reading.passages_per_document or 1
    tokens = sizes.passage_tokens(length * most)
    vectors = _vector_bytes(sizes) * (tokens / max(sizes.passage_tokens(length), 1) if most > 1 else 1)
    work = reading_work(sizes.encoder, tokens, sizes.collection.passage_tokens(length))
    return work + Work(memory=sizes.ids, disk=vectors + sizes.ids)


def _bm25_work(stage: Stage[Bm25Settings], sizes: Sizes) -> Work:
    settings, tokens = stage.settings, sizes.tokens
    tried = len(settings.k1) * len(settings.b) + len(settings.split_queries) - 1
    unit = f"tokens, {tried if settings.measure else 0} settings tried"
    return Work(tokens, unit, memory=words_memory(sizes), disk=_WORD_BYTES * tokens)


def words_memory(sizes: Sizes) -> float:
    """Return the bytes of memory in which a BM25 index is built."""
    return _WORD_MEMORY * sizes.tokens


def vectors_memory(sizes: Sizes) -> float:
    """Return the bytes of memory of an exact search."""
    return min(_vector_bytes(sizes), _FLAT_BYTES) + sizes.ids


def _vector_bytes(sizes: Sizes) -> float:
    return 4.0 * sizes.passages * sizes.encoder.hidden


INDEX = StageSpec(
    name="index",
    version=3,
    settings=IndexSettings,
    run="drkit.runs.making.retriever:index_vectors",
    inputs={
        "encoder": "an encoder's folder",
        "tokens": "the passages' tokens, unless documents are cut into passages",
        "passages": "for their ids, or the documents to cut",
    },
    resumable=True,
    joint=True,
    folders=("index-*",),
    prunable="*",
    work=_index_work,
)
BM25_STAGE = StageSpec(
    name="bm25",
    version=5,
    settings=Bm25Settings,
    run="drkit.runs.making.retriever:index_words",
    inputs={
        "passages": "the passages to index",
        "dev": "dev queries and judgements, to choose k1, b and split_queries by",
    },
    extras=("bm25",),
    folders=("bm25",),
    work=_bm25_work,
)
CHOSEN_INDEX = StageSpec(
    name="chosen-index",
    version=1,
    settings=NoSettings,
    run="drkit.runs.making.retriever:copy_index",
    inputs={"index/*": "a retriever's index", "choice": "which retriever is exported, if there are several"},
    folders=("index",),
)


def reading_of(builder: PlanBuilder) -> EncoderCard:
    """Return how the recipe's encoders read texts."""
    return settings_from(EncoderCard, builder.recipe)


@frozen
class PlannedSystem:
    """A system to evaluate: its stages, one per draw, and the stage whose ranking it re-ranks, if it is a re-ranker.

    folds: with cross-validation, the trainings that each rank the queries that they have not seen.
    """

    name: str
    stages: tuple[str, ...]
    reranks: str = ""
    folds: tuple[str, ...] = ()


def plan_start(builder: PlanBuilder) -> list[PlannedSystem]:
    """Return the initial encoder as a system to evaluate.

    An existing encoder is read with the pooling, lengths and prompts that it declares, not those of the recipe.
    """
    encoder = builder.recipe.encoder
    if encoder.pretrained is None:
        return [PlannedSystem(INITIAL, (INITIAL,))]
    try:
        reading = declared_card(encoder.pretrained, reading_of(builder))
    except DrkitError as error:
        builder.notes.append(f"{system_in_words(AS_IT_IS)} reads texts by the recipe's settings: {error}")
        reading = reading_of(builder)
    builder.add(
        AS_IT_IS,
        EXPORT,
        "the encoder as it is, with its own lengths and prompts",
        {f"checkpoint/{INITIAL}": StageOutput(INITIAL)},
        extra={"reading": reading},
    )
    return [PlannedSystem(AS_IT_IS, (AS_IT_IS,))]


def is_read_alike(builder: PlanBuilder) -> bool:
    """Return whether the encoder as it is reads texts by the recipe's settings, as the initial checkpoint does."""
    own = builder.stages.get(AS_IT_IS)
    return own is not None and own.settings.reading == reading_of(builder)


def searching_stage(builder: PlanBuilder, encoder: str) -> str:
    """Return the stage to search with in place of an encoder: equal ones encode the passages once."""
    return AS_IT_IS if encoder == INITIAL and is_read_alike(builder) else encoder


def add_index(builder: PlanBuilder, encoder: str, purpose: str) -> str:
    """Add the index of an encoder; purpose: `mined` (always exact) or `searched` (the kind that evaluation uses)."""
    kind = builder.recipe.evaluation.index if purpose == "searched" else "flat"
    name = f"index-{encoder}"
    if name in builder.stages and builder.stages[name].settings.kind != kind:
        name = f"{name}-{kind}"
    reading = builder.stages[encoder].settings.reading if encoder == AS_IT_IS else reading_of(builder)
    inputs, summary = {"encoder": StageOutput(encoder), "passages": PASSAGES}, f"encode all passages with {encoder}"
    if reading.passages_per_document:
        summary = f"encode up to {reading.passages_per_document} passages of every document with {encoder}"
    else:
        inputs["tokens"] = _passage_tokens(builder, encoder, reading)
    return builder.add(
        name,
        INDEX,
        summary,
        inputs,
        extra={"kind": kind, "reading": reading},
    )


def _passage_tokens(builder: PlanBuilder, encoder: str, reading: EncoderCard) -> StageOutput:
    """Return the tokens of all passages as an encoder reads them; adds a stage if the recipe reads them otherwise."""
    if reading.passages == builder.stages["tokens"].settings:
        return TOKENS
    summary = f"tokenise every passage as {encoder} reads it"
    return StageOutput(
        builder.add(
            f"tokens-{encoder}",
            PASSAGE_TOKENS,
            summary,
            builder.stages["tokens"].inputs,
            extra=asdict(reading.passages),
        )
    )


def plan_bm25(builder: PlanBuilder) -> str:
    """Add the index of BM25, with the settings that are best on dev queries; their first values if it has none."""
    evaluation, inputs, summary = builder.recipe.evaluation, {"passages": PASSAGES}, "index all passages for BM25"
    k1, b, splits = evaluation.bm25_k1, evaluation.bm25_b, evaluation.bm25_split_queries
    pairs = len(k1) * len(b)
    extra: dict[str, Any] = {"k1": k1, "b": b, "split_queries": splits}
    extra |= {"measure": None, "depth": 0, "exclude_self": False}
    if "dev" not in builder.splits or evaluation.split == "dev":
        extra |= {"k1": k1[:1], "b": b[:1], "split_queries": splits[:1]}
    elif pairs > 1 or len(splits) > 1:
        measure = evaluation.measures[0]
        choices = [f"of {pairs} combinations of k1 and b"] if pairs > 1 else []
        choices += [f"of {len(splits)} ways to split queries"] if len(splits) > 1 else []
        summary += f", with the best {' and '.join(choices)} on the dev queries by {measure}"
        inputs["dev"] = split_of("dev")
        depth = cutoff(measure) or evaluation.depth
        extra |= {"measure": measure, "depth": depth, "exclude_self": evaluation.exclude_self}
    return builder.add("bm25", BM25_STAGE, summary, inputs, extra=extra)
