"""Stage: rank the evaluation queries with every system; TREC run files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drkit.core.types import Query
from drkit.data.tables import StoredCollection, open_collection
from drkit.runs.retriever import load_text_encoder
from drkit.runs.stage import StageRun
from drkit.search import Bm25Retriever, FlatIndex, Retriever, write_run

BATCH = 256
Ranking = tuple[str, list[tuple[str, float]]]


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `SYSTEM.trec` for BM25 and every retriever; returns how many queries were searched."""
    settings = stage.stage.settings
    collection = open_collection(stage.inputs["collection"])
    judged = collection.positives(settings["split"])
    queries = [query for query in collection.queries(settings["split"]) if query.query_id in judged]
    for name, retriever in _systems(stage, collection):
        rankings = _rank(retriever, queries, stage, depth=settings["depth"])
        write_run(stage.folder / f"{name}.trec", rankings, tag=name)
    return {"queries": len(queries), "depth": settings["depth"]}


def _systems(stage: StageRun, collection: StoredCollection) -> Iterator[tuple[str, Any]]:
    """Each system as it is needed: one index is in memory at a time."""
    if stage.stage.settings["bm25"]:
        yield "bm25", Bm25Retriever().index(collection.corpus)
    for name, (encoder, index) in stage.stage.settings["systems"].items():
        folder = stage.inputs[index]
        yield name, Retriever(load_text_encoder(stage.inputs[encoder], stage.recipe), FlatIndex.load(folder))


def _rank(retriever: Any, queries: Sequence[Query], stage: StageRun, *, depth: int) -> Iterable[Ranking]:
    for start in range(0, len(queries), BATCH):
        part = queries[start : start + BATCH]
        found = retriever.search([query.text for query in part], depth)
        stage.progress.advance(start + len(part), len(queries), "queries")
        for query, hits in zip(part, found, strict=True):
            yield query.query_id, list(hits.pairs())
