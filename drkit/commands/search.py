"""Encode the passages or queries of a collection; re-rank rankings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from drkit.commands.collections import NamedCollection
from drkit.core.engine import Engine, Loaded, loaded_value
from drkit.core.protocols import PairScorer
from drkit.errors import DrkitError
from drkit.search import Encoder, Storage, Vectors, encode_corpus, read_run, rerank, write_run
from drkit.search.encode import passage_texts


def encode_collection(
    encoder: Encoder | Loaded[Encoder],
    collection: str,
    folder: str | Path,
    *,
    split: str | None = None,
    settings: Sequence[str] = (),
    storage: Storage | None = None,
    on_progress: Callable[[int], None] | None = None,
    engine: Engine | None = None,
) -> Vectors | None:
    """Encode the passages of a collection, or the queries of a split, into a folder of vectors.

    encoder, engine: see `encode_corpus`. collection, settings: see `NamedCollection`. storage: how vectors are
    stored; its role is set here. on_progress: called with the number of texts done. Returns None while other
    processes of a torchrun still write their shards. Repeated calls resume.

    Raises DrkitError as `encode_corpus` does, or if the collection or split does not exist, or has no words at all.
    """
    source = NamedCollection(collection, tuple(settings))
    opened = loaded_value(encoder)  # which may be missing, before the collection is read
    queries = ((q.query_id, q.text) for q in source.queries(split)) if split else None
    role = "queries" if split else "passages"
    made = attrs.evolve(storage or Storage(), role=role)
    texts = _with_words(
        queries or passage_texts(source.passages(), opened), f"{collection}: none of the {{:,}} {role} has a text"
    )
    return encode_corpus(encoder, texts, folder, storage=made, engine=engine, on_progress=on_progress)


def _with_words(texts: Iterable[tuple[str, str]], problem: str) -> Iterator[tuple[str, str]]:
    """Yield (id, text) pairs. Raises DrkitError after the last one, if there are some but all texts are empty."""
    count, is_empty = 0, True
    for doc_id, text in texts:
        count, is_empty = count + 1, is_empty and not text.strip()
        yield doc_id, text
    if count and is_empty:
        raise DrkitError(f"{problem.format(count)}; give the column or field that has it")


def rerank_file(
    run: Path,
    scorer: PairScorer,
    collection: NamedCollection,
    output: Path,
    *,
    split: str = "test",
    depth: int = 200,
    on_progress: Callable[[int], None] | None = None,
) -> Counter[str]:
    """Re-rank the first `depth` passages of every query of a TREC run, and write a run.

    Memory holds the texts of these passages. on_progress: called with the number of queries done. Returns counts:
    `ranked` queries, and what `drkit.search.rerank` reports as `missing`: `queries` (they keep their rankings) and
    `passages`.

    Raises DrkitError if the run cannot be read, or none of its queries or passages belongs to the collection.
    """
    queries = {query.query_id: query.text for query in collection.queries(split)}
    ranked = read_run(run).ordered()
    known = (row for row, query_id in enumerate(ranked.query_ids) if query_id in queries)
    doc_ids = {doc_id for row in known for doc_id in ranked.names(row, max(depth, 1))}
    if not doc_ids:
        raise DrkitError(
            f"{run}: none of its queries is among the {split} queries of {collection.name}; give the collection of "
            f"the run (--collection), or another split (--split)"
        )
    texts = {doc_id: text for doc_id, text in collection.contents() if doc_id in doc_ids}
    if not texts:
        raise DrkitError(f"{run}: none of its passages is in {collection.name}; give the collection of the run")
    counts = Counter[str]()

    def rows() -> Iterator[tuple[str, list[tuple[str, float]]]]:
        for row in rerank(ranked, scorer, queries=queries, corpus=texts, depth=depth, missing=counts):
            counts["ranked"] += row[0] in queries
            if on_progress:
                on_progress(counts["ranked"])
            yield row

    write_run(output, rows(), tag="reranker")
    return counts
