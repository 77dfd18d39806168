"""Stage: rank the evaluation queries with every system, then anew by the re-ranker; TREC run files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drkit.core.ranks import own_device
from drkit.core.types import Query
from drkit.data.tables import StoredCollection, open_collection
from drkit.runs.retriever import load_text_encoder
from drkit.runs.stage import StageRun
from drkit.search import Bm25Retriever, Reranker, Retriever, open_index, read_run, rerank, write_run

BATCH = 256
Ranking = tuple[str, list[tuple[str, float]]]


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `SYSTEM.trec` for BM25, every retriever and the re-ranker; returns how many queries were searched."""
    settings = stage.stage.settings
    collection = open_collection(stage.inputs["collection"])
    judged = collection.positives(settings["split"])
    queries = [query for query in collection.queries(settings["split"]) if query.query_id in judged]
    for name, retriever in _systems(stage, collection):
        rankings = _rank(retriever, queries, stage, depth=settings["depth"])
        write_run(stage.folder / f"{name}.trec", rankings, tag=name)
    for name, source in settings["reranked"].items():
        again = _rerank(stage, name, source, queries, collection)
        write_run(stage.folder / f"{name}.trec", again, tag=name)
    return {"queries": len(queries), "depth": settings["depth"]}


def _systems(stage: StageRun, collection: StoredCollection) -> Iterator[tuple[str, Any]]:
    """Each system as it is needed: one index is in memory at a time."""
    if stage.stage.settings["bm25"]:
        yield "bm25", Bm25Retriever().index(collection.corpus)
    for name, (encoder, index) in stage.stage.settings["systems"].items():
        folder = stage.inputs[index]
        yield name, Retriever(load_text_encoder(stage.inputs[encoder], stage.recipe), open_index(folder))


def _rank(retriever: Any, queries: Sequence[Query], stage: StageRun, *, depth: int) -> Iterable[Ranking]:
    own = bool(stage.stage.settings.get("exclude_self"))  # then one more is asked for, so that `depth` others remain
    for start in range(0, len(queries), BATCH):
        part = queries[start : start + BATCH]
        found = retriever.search([query.text for query in part], depth + own)
        stage.progress.advance(start + len(part), len(queries), "queries")
        for query, hits in zip(part, found, strict=True):
            kept = hits.without([query.query_id]).top(depth) if own else hits
            yield query.query_id, list(kept.pairs())


def _rerank(
    stage: StageRun, name: str, source: str, queries: Sequence[Query], collection: StoredCollection
) -> Iterator[Ranking]:
    """The rankings of a retriever, their first passages ranked anew by a cross-encoder."""
    scorer = Reranker.load(stage.inputs[name], own_device())
    found = read_run(stage.folder / f"{source}.trec")
    texts = {query.query_id: query.text for query in queries}
    depth = stage.stage.settings["rerank_depth"]
    rows = rerank(found, scorer, queries=texts, corpus=collection.corpus, depth=depth)
    for done, row in enumerate(rows, start=1):
        stage.progress.advance(done, len(queries), "queries ranked anew")
        yield row
