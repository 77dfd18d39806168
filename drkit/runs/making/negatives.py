"""Mine hard negatives for every training query, in this process or on an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve

from drkit.core.file_chunks import FileChunks
from drkit.core.files import CHECKPOINTS
from drkit.core.processes import local_device
from drkit.core.spec import Choice
from drkit.core.types import BuildContext, Mined
from drkit.data.column_sources import RERANKER
from drkit.data.corpus import StoredCorpus, collection_of
from drkit.encoders.card import EncoderCard
from drkit.miners.blocks import mine_on, open_collected
from drkit.miners.chain import Chain, build_chain, mining_requests, model_hashes, write_negatives
from drkit.miners.specs import refresh_settings
from drkit.runs.making.retriever import load_retriever
from drkit.runs.stage import StageRun
from drkit.runs.stages.negatives import NegativeSettings
from drkit.search import Reranker


def mine_negatives(stage: StageRun[NegativeSettings]) -> Mapping[str, Any]:
    """Write `negatives.arrow`; returns counts, dropped candidates by reason, and hashes of the models."""
    settings = stage.settings
    miners = tuple(map(stage.resolved, settings.miners))
    open_with = _opener(stage)
    context, corpus = open_with()
    if refresh_settings(settings.miners) and context.retriever is None:
        stage.progress.note("the model in training mines all negatives, including those of the first epoch")
        return write_negatives((), corpus, stage.folder)
    chain = build_chain(miners, stage.registry, context)
    counts = write_negatives(_mined(stage, miners, chain, context, open_with), corpus, stage.folder)
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


def _mined(
    stage: StageRun[NegativeSettings],
    miners: tuple[Choice, ...],
    chain: Chain,
    context: BuildContext,
    open_with: partial[tuple[BuildContext, StoredCorpus]],
) -> Iterator[Mined]:
    """Yield the negatives of all training queries, mined in this process or on the engine."""
    settings, kept = stage.settings, stage.folder / CHECKPOINTS
    collection = collection_of(stage.inputs)
    total = len(collection.positives("train"))
    return mine_on(
        stage.engine,
        chain,
        collection.corpus,
        mining_requests(collection, exclude_self=settings.exclude_self),
        chain.depth,
        choices=miners,
        context=context,
        open_with=open_with,
        index=kept / "index",
        chunks=FileChunks(kept / "mined"),
        on_progress=lambda done: stage.progress.advance(done, total, "queries"),
    )
