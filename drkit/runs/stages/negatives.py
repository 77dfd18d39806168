"""Stage: mine hard negatives for every training query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from drkit.recipe.schema import Choice
from drkit.runs.stage import StageRun, StageSpec, TextReading, from_recipe


@frozen
class NegativeSettings:
    """A chain of miners: a source, then filters; reading: how the retriever reads texts, None without one."""

    miners: tuple[Choice, ...]
    reading: TextReading | None
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    seed: int = from_recipe("seed")


def run(stage: StageRun[NegativeSettings]) -> Mapping[str, Any]:
    """Write `negatives.arrow`; returns counts, dropped candidates by reason, and hashes of the weights."""
    from drkit.core.processes import local_device
    from drkit.core.types import BuildContext
    from drkit.data.corpus import collection_of
    from drkit.miners.chain import build_chain, refresh_settings
    from drkit.miners.mining import mining_requests, weight_hashes, write_negatives
    from drkit.runs.retriever import load_text_encoder
    from drkit.search import FlatIndex, Reranker, Retriever

    settings, inputs = stage.settings, stage.inputs
    collection = collection_of(inputs)
    retriever = None
    if "index" in inputs and settings.reading is not None:
        retriever = Retriever(load_text_encoder(inputs["encoder"], settings.reading), FlatIndex.load(inputs["index"]))
    context = BuildContext(
        retriever=retriever,
        reranker=Reranker.load(inputs["reranker"], local_device()) if "reranker" in inputs else None,
        negatives=collection.negatives("train"),
        seed=settings.seed,
    )
    if refresh_settings(settings.miners) and retriever is None:
        stage.progress.note("the model in training mines all negatives, including those of the first epoch")
        return write_negatives((), collection.corpus, stage.folder)
    miner = build_chain(settings.miners, stage.registry, context)
    miner.index(collection.corpus)
    total = len(collection.positives("train"))
    requests = mining_requests(collection, exclude_self=settings.exclude_self)
    mined = _reporting(miner.mine(requests, miner.depth), total, stage)
    counts = write_negatives(mined, collection.corpus, stage.folder)
    if counts["queries_without"]:
        stage.progress.note(_describe_queries_without(counts))
    return {**counts, "weights": weight_hashes(context)}


def _describe_queries_without(counts: Mapping[str, Any]) -> str:
    dropped = ", ".join(f"{why} {count:,}" for why, count in counts["dropped"].items()) or "none"
    return f"{counts['queries_without']:,} of {counts['queries']:,} queries have no hard negative; dropped: {dropped}"


def _reporting(mined: Iterator[Any], total: int, stage: StageRun[NegativeSettings]) -> Iterator[Any]:
    for done, item in enumerate(mined, start=1):
        stage.progress.advance(done, total, "queries")
        yield item


NEGATIVES = StageSpec(
    name="negatives",
    version=1,
    settings=NegativeSettings,
    run=run,
    inputs={
        "passages": "the passages to mine",
        "train": "training queries, judgements and given negatives",
        "encoder": "the previous retriever",
        "index": "its index",
        "reranker": "a cross-encoder, for filters",
    },
)
