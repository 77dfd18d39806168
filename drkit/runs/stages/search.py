"""Stage: rank the queries of a split with every system, then re-rank, and write TREC run files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.runs.stage import TRUNCATED, StageRun, StageSpec, TextReading, Truncation, from_recipe, record_truncations

if TYPE_CHECKING:
    from drkit.core.types import Query
    from drkit.data.corpus import StoredCorpus
    from drkit.search import AnyEncoder

BATCH = 256
Ranking = tuple[str, list[tuple[str, float]]]


@frozen
class SearchSettings:
    """The systems: retrievers by name, and re-rankers with the retriever whose ranking they re-rank.

    Their inputs are `encoder/NAME`, `index/NAME` and `reranker/NAME`. BM25 comes first if its index is an input.
    split: whose queries they are.
    """

    retrievers: tuple[str, ...]
    reranked: Mapping[str, str]
    rerank_depth: int
    reading: TextReading
    depth: int = from_recipe("evaluation.depth")
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    split: str = from_recipe("evaluation.split", observes=True)


def run(stage: StageRun[SearchSettings]) -> Mapping[str, Any]:
    """Write `SYSTEM.trec` for BM25, every retriever and the re-ranker; returns the number of queries."""
    from drkit.data.corpus import StoredCorpus, read_queries
    from drkit.search import write_run

    settings = stage.settings
    corpus = StoredCorpus(stage.inputs["passages"])
    queries = list(read_queries(stage.inputs["queries"]))
    truncations = []
    for name, retriever in _systems(stage):
        write_run(stage.folder / f"{name}.trec", _rank(retriever, queries, stage), tag=name)
        if name in settings.retrievers:
            truncations.append(_truncation(retriever.encoder, [query.text for query in queries], settings.split))
    record_truncations(truncations, stage.folder, stage.progress)
    for name, source in settings.reranked.items():
        write_run(stage.folder / f"{name}.trec", _rerank(stage, name, source, queries, corpus), tag=name)
    return {"queries": len(queries), "depth": settings.depth}


def _truncation(encoder: AnyEncoder, texts: Sequence[str], split: str) -> Truncation:
    from drkit.data.store import count_truncated

    counts = count_truncated(Counter(encoder.query_lengths(texts)), encoder.query_length)
    return Truncation(f"{split} queries", "encoder.query_length", encoder.query_length, texts=len(texts), **counts)


def _systems(stage: StageRun[SearchSettings]) -> Iterator[tuple[str, Any]]:
    """Yield the systems one by one, so that only one index is in memory at a time."""
    from drkit.runs.retriever import load_text_encoder
    from drkit.search import Bm25Retriever, Retriever, open_index

    if "bm25" in stage.inputs:
        yield "bm25", Bm25Retriever.load(stage.inputs["bm25"])
    for name in stage.settings.retrievers:
        encoder = load_text_encoder(stage.inputs[f"encoder/{name}"], stage.settings.reading)
        yield name, Retriever(encoder, open_index(stage.inputs[f"index/{name}"]))


def _rank(retriever: Any, queries: Sequence[Query], stage: StageRun[SearchSettings]) -> Iterable[Ranking]:
    depth, exclude_self = stage.settings.depth, stage.settings.exclude_self
    for start in range(0, len(queries), BATCH):
        part = queries[start : start + BATCH]
        # One more hit, because the passage with the query's own id is dropped afterwards.
        found = retriever.search([query.text for query in part], depth + exclude_self)
        stage.progress.advance(start + len(part), len(queries), "queries")
        for query, hits in zip(part, found, strict=True):
            kept = hits.without([query.query_id]).top(depth) if exclude_self else hits
            yield query.query_id, list(kept.pairs())


def _rerank(
    stage: StageRun[SearchSettings], name: str, source: str, queries: Sequence[Query], corpus: StoredCorpus
) -> Iterator[Ranking]:
    """Yield the rankings of a retriever with their first passages re-ranked by a cross-encoder."""
    from drkit.core.processes import local_device
    from drkit.search import Reranker, read_run, rerank

    scorer = Reranker.load(stage.inputs[f"reranker/{name}"], local_device())
    found = read_run(stage.folder / f"{source}.trec")
    texts = {query.query_id: query.text for query in queries}
    rows = rerank(found, scorer, queries=texts, corpus=corpus, depth=stage.settings.rerank_depth)
    for done, row in enumerate(rows, start=1):
        stage.progress.advance(done, len(queries), "queries re-ranked")
        yield row


SEARCH = StageSpec(
    name="search",
    version=2,
    settings=SearchSettings,
    run=run,
    inputs={
        "passages": "the corpus",
        "queries": "the queries to rank passages for",
        "bm25": "BM25's index",
        "encoder/*": "the encoder of a retriever",
        "index/*": "its index",
        "reranker/*": "a cross-encoder",
    },
    records=(TRUNCATED,),
)
