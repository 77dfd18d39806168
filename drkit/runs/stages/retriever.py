"""Stages around a retriever: choose and export one, and index its vectors.

`choice` is the retriever that is best on the dev queries; `export` writes the encoder folder that users load, and
`chosen-index` takes its index. `index` encodes all passages; `bm25` indexes their words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.evaluate.names import AS_IT_IS, system_in_words
from drkit.evaluate.systems import describe_bm25
from drkit.runs.manifest import Manifest
from drkit.runs.stage import WEIGHTS, Stage, StageSpec, TextReading, from_recipe
from drkit.runs.stages.finetune import FINETUNE
from drkit.runs.work import FORWARD, Sizes, Work, reading_work

CHOICE, CHOSEN = "choice.json", "chosen.txt"


@frozen
class ChoiceSettings:
    """The retrievers to choose from, in the order of the table, and the measure that decides."""

    candidates: tuple[str, ...]
    measure: str
    exclude_self: bool = from_recipe("evaluation.exclude_self")


def describe_choice(choice: Mapping[str, Any]) -> str:
    """Return in words which retriever is exported, and why.

    >>> choice = {"chosen": "as-it-is", "last": "r-1", "measure": "RR@10", "queries": 9}
    >>> describe_choice({**choice, "values": {"as-it-is": 0.5, "r-1": 0.25}})
    'exported: the encoder as it is, the best of 2 retrievers on 9 dev queries (RR@10 0.500; r-1, the last, 0.250)'
    """
    chosen, last, values, measure = (choice[key] for key in ("chosen", "last", "values", "measure"))
    against = "the last" if chosen == last else f"{system_in_words(last)}, the last, {values[last]:.3f}"
    best = f"the best of {len(values)} retrievers on {choice['queries']:,} dev queries"
    return f"exported: {system_in_words(chosen)}, {best} ({measure} {values[chosen]:.3f}; {against})"


CHOOSE = StageSpec(
    name="choice",
    version=1,
    settings=ChoiceSettings,
    run="drkit.runs.steps.retriever:choose",
    inputs={"judged": "the dev split of the collection", "runs": "the retrievers' rankings of the dev queries"},
    folders=("choice",),
)


@frozen
class ExportSettings:
    """How the exported encoder reads texts."""

    reading: TextReading


EXPORT = StageSpec(
    name="export",
    version=2,
    settings=ExportSettings,
    run="drkit.runs.steps.retriever:export_chosen",
    inputs={"checkpoint/*": "a retriever's checkpoint", "choice": "which one is exported, if there are several"},
    folders=("encoder", AS_IT_IS),
    prunable=WEIGHTS,
)


@frozen
class IndexSettings:
    """How passages are encoded, and the kind of index; see `build_index`."""

    kind: str
    reading: TextReading


@frozen
class Bm25Settings:
    """Values of k1 and b. measure: decides between several of them on the dev queries, to this depth; None for one."""

    k1: tuple[float, ...]
    b: tuple[float, ...]
    measure: str | None
    depth: int
    exclude_self: bool
    language: str = from_recipe("evaluation.bm25_language")


def choices_made(done: Mapping[str, Manifest]) -> list[str]:
    """Return what stands behind a run's table, a line each: the exported retriever, BM25's k1 and b, and the labels.

    done: the finished stages. The labels have a line if all retrievers learn from as many of them, and not from all.
    """
    lines = [describe_choice(done["choice"].metrics)] if "choice" in done else []
    lines += [describe_bm25(done["bm25"].metrics)] if "bm25" in done and "means" in done["bm25"].metrics else []
    limits = {stage.settings["queries"] for stage in done.values() if stage.stage == FINETUNE.name}
    given = done["collection"].metrics["queries"].get("train", 0) if "collection" in done else 0
    if len(limits) == 1 and 0 < (limit := min(limits)) < given:
        lines.append(f"labels: {limit:,} of {given:,} training queries; --set finetune.rounds.0.queries=0 reads all")
    return lines


@frozen
class ChosenIndexSettings:
    """No settings: the index is copied unchanged."""


# Bytes of an id, and of the vectors that are read into memory at most.
_ID_BYTES, _FLAT_BYTES = 16, 4 * 2**30
# Seconds and bytes for each token that BM25 indexes.
_INDEXED, _WORD_BYTES = 1.5e-6, 4.7
# Seconds for each passage that BM25 scores for a query, for each query of BM25, for each query
# of a retriever, and for each of its scores that the best are selected from.
_SCORED, _LOOKED_UP, _SEARCHED, _SELECTED = 1.1e-8, 3e-4, 1e-4, 1e-8


def _index_work(stage: Stage[IndexSettings], sizes: Sizes) -> Work:
    reading = stage.settings.reading
    length, most = reading.passage_length, reading.passages_per_document or 1
    tokens = sizes.passage_tokens(length * most)
    vectors = _vector_bytes(sizes) * (tokens / max(sizes.passage_tokens(length), 1) if most > 1 else 1)
    ids = float(_ID_BYTES * sizes.passages)
    work = reading_work(sizes.encoder, tokens, sizes.collection.passage_tokens(length))
    return work + Work(memory=ids, disk=vectors + ids)


def _bm25_work(stage: Stage[Bm25Settings], sizes: Sizes) -> Work:
    settings, kept = stage.settings, _WORD_BYTES * sizes.tokens
    pairs = len(settings.k1) * len(settings.b)
    searched = pairs * sizes.count(str(stage.inputs["dev"])) if settings.measure else 0.0
    return Work(seconds=_INDEXED * sizes.tokens + bm25_seconds(searched, sizes), memory=3 * kept, disk=kept)


def bm25_seconds(queries: float, sizes: Sizes) -> float:
    """Return the seconds in which BM25 searches for so many queries."""
    return queries * (_LOOKED_UP + _SCORED * sizes.passages)


def dense_work(queries: float, sizes: Sizes) -> Work:
    """Return the work of an exact search for so many queries: each with each vector."""
    encoder = sizes.encoder
    read = reading_work(encoder, queries * sizes.collection.query_tokens(), sizes.collection.query_tokens())
    compared = FORWARD * queries * sizes.passages * encoder.hidden
    memory = min(_vector_bytes(sizes), _FLAT_BYTES) + _ID_BYTES * sizes.passages
    selected = _SELECTED * queries * sizes.passages
    return read + Work(flops=compared, seconds=_SEARCHED * queries, parallel=selected, memory=memory)


def _vector_bytes(sizes: Sizes) -> float:
    return 4.0 * sizes.passages * sizes.encoder.hidden


INDEX = StageSpec(
    name="index",
    version=2,
    settings=IndexSettings,
    run="drkit.runs.steps.retriever:index_vectors",
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
BM25 = StageSpec(
    name="bm25",
    version=3,
    settings=Bm25Settings,
    run="drkit.runs.steps.retriever:index_words",
    inputs={"passages": "the passages to index", "dev": "dev queries and judgements, to choose k1 and b by"},
    extras=("bm25",),
    folders=("bm25",),
    work=_bm25_work,
)
CHOSEN_INDEX = StageSpec(
    name="chosen-index",
    version=1,
    settings=ChosenIndexSettings,
    run="drkit.runs.steps.retriever:copy_index",
    inputs={"index/*": "a retriever's index", "choice": "which retriever is exported, if there are several"},
    folders=("index",),
)
