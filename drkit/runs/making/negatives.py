"""Mine hard negatives for every training query, in this process or on an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from attrs import evolve

from drkit.core.file_chunks import FileChunks
from drkit.core.files import CHECKPOINTS
from drkit.core.processes import local_device
from drkit.core.spec import Choice
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.data.column_sources import RERANKER
from drkit.data.corpus import StoredCorpus, collection_of
from drkit.data.data_set_names import data_set_of
from drkit.data.data_sets import PassageRange
from drkit.encoders.card import EncoderCard
from drkit.miners.blocks import mine_on, open_collected
from drkit.miners.chain import build_chain, mining_requests, model_hashes, write_negatives
from drkit.miners.specs import refresh_settings
from drkit.runs.making.retriever import load_retriever
from drkit.runs.stage import StageRun
from drkit.runs.stages.negatives import NegativeSettings
from drkit.search import Reranker, Retriever
from drkit.search.data_sets import one_data_set


def mine_negatives(stage: StageRun[NegativeSettings]) -> Mapping[str, Any]:
    """Write `negatives.arrow`; returns counts, dropped candidates by reason, and hashes of the models."""
    settings = stage.settings
    open_with = _opener(stage)
    context, corpus = open_with()
    if refresh_settings(settings.miners) and context.retriever is None:
        stage.progress.note("the model in training mines all negatives, including those of the first epoch")
        return write_negatives((), corpus, stage.folder)
    counts = write_negatives(_mined_of_all(stage, open_with, context, corpus), corpus, stage.folder)
    if counts["queries_without"]:
        dropped = ", ".join(f"{why} {count:,}" for why, count in counts["dropped"].items()) or "none"
        stage.progress.note(
            f"{counts['queries_without']:,} of {counts['queries']:,} queries have no hard negative; dropped: {dropped}"
        )
    return {**counts, "models": model_hashes(context)}


def _opener(stage: StageRun[NegativeSettings]) -> partial[tuple[BuildContext, StoredCorpus]]:
    """Return what opens the miners' context and the corpus; workers of miners without a model do not import torch."""
    given, seed = tuple(stage.inputs.items()), stage.settings.seed
    if {"index", RERANKER}.isdisjoint(stage.inputs):
        return partial(open_collected, given, seed)
    return partial(open_inputs, given, stage.settings.reading, seed)


def open_inputs(
    given: tuple[tuple[str, Path], ...], reading: EncoderCard | None, seed: int
) -> tuple[BuildContext, StoredCorpus]:
    """Return what miners are built with (retriever and re-ranker, where the inputs have them), and the corpus."""
    inputs = dict(given)
    context, corpus = open_collected(given, seed)
    searches = "index" in inputs and reading is not None
    made = evolve(
        context,
        retriever=load_retriever(inputs["encoder"], inputs["index"], reading) if searches and reading else None,
        reranker=Reranker.load(inputs[RERANKER], local_device()) if RERANKER in inputs else None,
    )
    return made, corpus


def open_data_set(
    given: tuple[tuple[str, Path], ...],
    reading: EncoderCard | None,
    seed: int,
    names: tuple[str, ...],
    name: str,
) -> tuple[BuildContext, PassageRange]:
    """Return what `open_inputs` does, for the passages of one data set; names: of all, in their order."""
    models = {"index", RERANKER} & dict(given).keys()
    context, corpus = open_inputs(given, reading, seed) if models else open_collected(given, seed)
    if isinstance(context.retriever, Retriever):
        context = evolve(context, retriever=one_data_set(context.retriever, name, names))
    return context, PassageRange.of(corpus, name, names)


def _mined_of_all(
    stage: StageRun[NegativeSettings],
    open_with: partial[tuple[BuildContext, StoredCorpus]],
    context: BuildContext,
    corpus: StoredCorpus,
) -> Iterator[Mined]:
    """Yield the negatives of all training queries, those of several data sets from their own passages."""
    settings, collection = stage.settings, collection_of(stage.inputs)
    requests = mining_requests(collection, exclude_self=settings.exclude_self)
    if not settings.data_sets:
        miners = tuple(map(stage.resolved, settings.miners))
        yield from _mined(stage, miners, requests, context, corpus, open_with)
        return
    given = tuple(stage.inputs.items())
    for name, own in groupby(requests, lambda request: data_set_of(request.query_id)):
        opener = partial(open_data_set, given, settings.reading, settings.seed, settings.data_sets, name)
        found, passages = opener()
        miners = tuple(map(stage.resolved, settings.chain_of(name)))
        yield from _mined(stage, miners, own, found, passages, opener, name)


def _mined(
    stage: StageRun[NegativeSettings],
    choices: tuple[Choice, ...],
    requests: Iterable[MiningRequest],
    context: BuildContext,
    corpus: Any,
    open_with: partial[Any],
    name: str = "",
) -> Iterator[Mined]:
    """Yield the negatives of training queries, mined in this process or on the engine; name: of their data set."""
    kept = stage.folder / CHECKPOINTS / name
    chain = build_chain(choices, stage.registry, context)
    positives = collection_of(stage.inputs).positives("train")
    total = sum(data_set_of(query_id) == name for query_id in positives) if name else len(positives)
    what = f"queries of {name}" if name else "queries"
    return mine_on(
        stage.engine,
        chain,
        corpus,
        requests,
        chain.depth,
        choices=choices,
        context=context,
        open_with=open_with,
        index=kept / "index",
        chunks=FileChunks(kept / "mined"),
        on_progress=lambda done: stage.progress.advance(done, total, what),
    )
