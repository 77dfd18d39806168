"""Stage: hard negatives for every training query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from drkit.core.recipe import RERANKER, Choice
from drkit.core.types import BuildContext, MiningRequest
from drkit.data.tables import StoredCollection, open_collection
from drkit.miners.chain import build_chain
from drkit.runs.negatives import write_negatives
from drkit.runs.retriever import load_text_encoder
from drkit.runs.stage import StageRun
from drkit.search import FlatIndex, Retriever


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `negatives.arrow`; returns how many queries got how many."""
    collection = open_collection(stage.inputs["collection"])
    context = BuildContext(retriever=_retriever(stage), seed=stage.recipe.seed)
    miner = build_chain(chain_of(stage), stage.registry, context)
    miner.index(collection.corpus)
    depth = miner.depth
    total = len(collection.positives("train"))
    counts = write_negatives(
        _reporting(miner.mine(requests(collection), depth), total, stage), collection.corpus, stage.folder
    )
    if counts["queries_without"]:
        stage.progress.note(f"{counts['queries_without']:,} queries have no hard negative: in-batch negatives only")
    return counts


def chain_of(stage: StageRun) -> tuple[Choice, ...]:
    """The miners of the round that the stage mines for, or of the re-ranker."""
    recipe, owner = stage.recipe, stage.stage.settings["owner"]
    if owner == RERANKER:
        assert recipe.reranker is not None
        return recipe.reranker.miners
    assert recipe.finetune is not None
    return next(current.miners for current in recipe.finetune.rounds if current.name == owner)


def requests(collection: StoredCollection) -> Iterator[MiningRequest]:
    """Every training query with a positive, and all passages judged relevant to it."""
    positives = collection.positives("train")
    for query in collection.queries("train"):
        if judged := positives.get(query.query_id):
            yield MiningRequest(query.query_id, query.text, frozenset(judged))


def _reporting(mined: Iterator[Any], total: int, stage: StageRun) -> Iterator[Any]:
    for done, item in enumerate(mined, start=1):
        stage.progress.advance(done, total, "queries")
        yield item


def _retriever(stage: StageRun) -> Retriever | None:
    index = next((path for name, path in stage.inputs.items() if name.startswith("index-")), None)
    if index is None:
        return None
    encoder = next(p for n, p in stage.inputs.items() if n not in ("collection", RERANKER) and p != index)
    return Retriever(load_text_encoder(encoder, stage.recipe), FlatIndex.load(index))
