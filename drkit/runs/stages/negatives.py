"""The stage `negatives`: hard negatives for every training query, by the previous retriever or by BM25."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.core.protocols import RankingDepth
from drkit.recipe.schema import Choice
from drkit.runs.stage import Stage, StageRun, StageSpec, TextReading, from_recipe
from drkit.runs.stages.retriever import bm25_seconds, dense_work, load_retriever
from drkit.runs.work import Sizes, Work

if TYPE_CHECKING:
    from drkit.core.types import BuildContext, Mined
    from drkit.data.corpus import StoredCorpus
    from drkit.miners.chain import Chain


@frozen
class NegativeSettings:
    """A chain of miners: a source, then filters; reading: how the retriever reads texts, None without one."""

    miners: tuple[Choice, ...]
    reading: TextReading | None
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    seed: int = from_recipe("seed")


def mine_negatives(stage: StageRun[NegativeSettings]) -> Mapping[str, Any]:
    """Write `negatives.arrow`; returns counts, dropped candidates by reason, and hashes of the models."""
    from drkit.miners.chain import build_chain, model_hashes, write_negatives
    from drkit.miners.specs import refresh_settings

    settings = stage.settings
    given = tuple(stage.inputs.items()), settings.reading, settings.seed
    context, corpus = open_inputs(*given)
    if refresh_settings(settings.miners) and context.retriever is None:
        stage.progress.note("the model in training mines all negatives, including those of the first epoch")
        return write_negatives((), corpus, stage.folder)
    chain = build_chain(settings.miners, stage.registry, context)
    counts = write_negatives(_mined(stage, chain, context, partial(open_inputs, *given)), corpus, stage.folder)
    if counts["queries_without"]:
        dropped = ", ".join(f"{why} {count:,}" for why, count in counts["dropped"].items()) or "none"
        stage.progress.note(
            f"{counts['queries_without']:,} of {counts['queries']:,} queries have no hard negative; dropped: {dropped}"
        )
    return {**counts, "models": model_hashes(context)}


def open_inputs(
    given: tuple[tuple[str, Path], ...], reading: TextReading | None, seed: int
) -> tuple[BuildContext, StoredCorpus]:
    """Return what miners are built with (retriever and re-ranker, where the inputs have them), and the corpus."""
    from drkit.core.processes import local_device
    from drkit.core.types import BuildContext
    from drkit.data.corpus import collection_of
    from drkit.search import Reranker

    inputs = dict(given)
    collection = collection_of(inputs)
    searches = "index" in inputs and reading is not None
    context = BuildContext(
        retriever=load_retriever(inputs["encoder"], inputs["index"], reading) if searches and reading else None,
        reranker=Reranker.load(inputs["reranker"], local_device()) if "reranker" in inputs else None,
        negatives=collection.negatives("train"),
        seed=seed,
    )
    return context, collection.corpus


def _mined(
    stage: StageRun[NegativeSettings],
    chain: Chain,
    context: BuildContext,
    open_with: partial[tuple[BuildContext, StoredCorpus]],
) -> Iterator[Mined]:
    """Yield the negatives of all training queries, mined in this process or on the engine."""
    from drkit.core.file_parts import FileParts
    from drkit.core.files import CHECKPOINTS
    from drkit.data.corpus import collection_of
    from drkit.miners.blocks import mine_on
    from drkit.miners.chain import mining_requests

    settings, kept = stage.settings, stage.folder / CHECKPOINTS
    collection = collection_of(stage.inputs)
    total = len(collection.positives("train"))
    return mine_on(
        stage.engine,
        chain,
        collection.corpus,
        mining_requests(collection, exclude_self=settings.exclude_self),
        chain.depth,
        choices=settings.miners,
        context=context,
        open_with=open_with,
        index=kept / "index",
        parts=FileParts(kept / "mined"),
        on_progress=lambda done: stage.progress.advance(done, total, "queries"),
    )


# Seconds and bytes of each hit, and how many a source reads if it does not say.
_MINED, _HIT_BYTES, _DEPTH = 3e-6, 12.3, 200


def _mining_work(stage: Stage[NegativeSettings], sizes: Sizes) -> Work:
    """Count the source's searches: by the retriever if the stage reads one, else by BM25. Filters are left out."""
    config, queries = stage.settings.miners[0].config, sizes.count(str(stage.inputs["train"]))
    hits = queries * (config.depth if isinstance(config, RankingDepth) else _DEPTH)
    searched = dense_work(queries, sizes) if "index" in stage.inputs else Work(seconds=bm25_seconds(queries, sizes))
    return searched + Work(seconds=_MINED * hits, disk=_HIT_BYTES * hits)


NEGATIVES = StageSpec(
    name="negatives",
    version=3,
    settings=NegativeSettings,
    run=mine_negatives,
    inputs={
        "passages": "the passages to mine",
        "train": "training queries, judgements and given negatives",
        "encoder": "the previous retriever",
        "index": "its index",
        "reranker": "a cross-encoder, for filters",
    },
    resumable=True,
    folders=("negatives-*",),
    work=_mining_work,
)
