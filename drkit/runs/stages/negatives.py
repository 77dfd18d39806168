"""Stage: hard negatives for every training query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drkit.core.ranks import own_device
from drkit.core.recipe import RERANKER, Choice
from drkit.core.types import BuildContext
from drkit.data.tables import StoredCollection, open_collection
from drkit.errors import DrkitError
from drkit.miners.chain import build_chain, refresh_of
from drkit.runs.finetuning.negatives import requests, write_negatives
from drkit.runs.retriever import load_text_encoder
from drkit.runs.stage import StageRun
from drkit.search import FlatIndex, Reranker, Retriever
from drkit.search.text_encoder import weights_hash


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `negatives.arrow`; returns counts, what was dropped and why, and hashes of the weights that found it."""
    collection = open_collection(stage.inputs["collection"])
    context = _context(stage, collection)
    choices = chain_of(stage)
    if refresh_of(choices) and context.retriever is None:
        stage.progress.note("negatives are mined by the model in training, those of the first epoch too")
        return write_negatives((), collection.corpus, stage.folder)
    miner = build_chain(choices, stage.registry, context)
    miner.index(collection.corpus)
    total = len(collection.positives("train"))
    asked = requests(collection, exclude_self=stage.recipe.evaluation.exclude_self)
    mined = _reporting(miner.mine(asked, miner.depth), total, stage)
    counts = write_negatives(mined, collection.corpus, stage.folder)
    if counts["queries_without"]:
        stage.progress.note(_without(counts))
    return {**counts, "weights": weights_of(context)}


def _without(counts: Mapping[str, Any]) -> str:
    dropped = ", ".join(f"{why} {count:,}" for why, count in counts["dropped"].items()) or "nothing"
    return f"{counts['queries_without']:,} of {counts['queries']:,} queries have no hard negative; dropped: {dropped}"


def chain_of(stage: StageRun) -> tuple[Choice, ...]:
    """The miners of the round that the stage mines for, or of the re-ranker."""
    recipe, owner = stage.recipe, stage.stage.settings["owner"]
    if owner == RERANKER:
        assert recipe.reranker is not None
        if refresh_of(recipe.reranker.miners):
            raise DrkitError(
                "the re-ranker is no retriever and mines nothing: in reranker.miners take dense, not refresh"
            )
        return recipe.reranker.miners
    assert recipe.finetune is not None
    return next(current.miners for current in recipe.finetune.rounds if current.name == owner)


def _reporting(mined: Iterator[Any], total: int, stage: StageRun) -> Iterator[Any]:
    for done, item in enumerate(mined, start=1):
        stage.progress.advance(done, total, "queries")
        yield item


def weights_of(context: BuildContext) -> dict[str, str]:
    """Hashes of the weights that a chain searches and scores with: names and paths say nothing of them."""
    encoder, model = getattr(context.retriever, "encoder", None), getattr(context.reranker, "model", None)
    found = {} if encoder is None else {"retriever": encoder.identity()["weights"]}
    return found if model is None else {**found, "reranker": weights_hash(model)}


def _context(stage: StageRun, collection: StoredCollection) -> BuildContext:
    reranker = stage.inputs.get(RERANKER)
    return BuildContext(
        retriever=_retriever(stage),
        reranker=Reranker.load(reranker, own_device()) if reranker else None,
        negatives=collection.negatives("train"),
        seed=stage.recipe.seed,
    )


def _retriever(stage: StageRun) -> Retriever | None:
    index = next((path for name, path in stage.inputs.items() if name.startswith("index-")), None)
    if index is None:
        return None
    encoder = next(p for n, p in stage.inputs.items() if n not in ("collection", RERANKER) and p != index)
    return Retriever(load_text_encoder(encoder, stage.recipe), FlatIndex.load(index))
