"""Rankings of many queries in files: search with any retriever, and re-rank; in this process, or on an engine.

Queries are ranked in blocks. On an engine, a task ranks a block and writes it to a file of its own until all are done;
the complete file is the same as with one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from drkit.core.engine import Engine, Loaded, Uses, loaded_value
from drkit.core.file_chunks import FileChunk, FileChunks, items_of
from drkit.core.files import digest, path_state
from drkit.core.protocols import PairScorer
from drkit.core.types import Query
from drkit.data.corpus import StoredCorpus
from drkit.data.rows import batched
from drkit.errors import DrkitError
from drkit.search.encode import check_identity
from drkit.search.fusion import Searcher, find_rankings
from drkit.search.rankings import Rankings
from drkit.search.reranking import WINDOW, rerank
from drkit.search.retriever import Retriever
from drkit.search.run_files import read_run, write_blocks, write_rankings

# Texts that are encoded together decide the last bits of their vectors, so tasks have whole batches.
QUERIES_PER_PASS, QUERIES_PER_SEARCH = 4096, 256


@frozen
class RankedBlock:
    """Queries whose rankings `rank(*arguments)` yields; content: plain data that the rankings depend on."""

    queries: Sequence[str]
    content: Any
    rank: Callable[..., Iterable[Rankings]]
    arguments: tuple[Any, ...]


def rank_to_file(
    blocks: Iterable[RankedBlock],
    path: Path,
    *,
    engine: Engine | None = None,
    kept: FileChunks | None = None,
    uses: Uses = "gpu",
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Rank blocks of queries and write a file of rankings, as `write_run` does; returns the number of queries.

    engine: where blocks are ranked; in this process if None. kept: where it keeps the finished ones until the file is
    complete; without it, they are ranked in this process. uses: what ranking computes with (see `Task`). on_progress:
    called with the number of queries done.

    Raises DrkitError without queries, or if one occurs twice.
    """
    ends = [0]

    def chunks() -> Iterator[FileChunk[Rankings]]:
        for block in blocks:
            ends.append(ends[-1] + len(block.queries))
            name = f"queries {ends[-2] + 1} to {ends[-1]} for {path.name}"
            content = [list(block.queries), block.content]
            yield FileChunk(name, 1, content, block.rank, block.arguments, uses)
        if not ends[-1]:
            raise DrkitError("no queries to search for: the file is empty; give a file with one query per line")

    progress = on_progress and (lambda done: on_progress(ends[done]))
    ranked = items_of(chunks(), write=write_block, read=read_block, kept=kept, engine=engine, on_progress=progress)
    count = write_blocks(path, ranked, "drkit")
    if kept:
        kept.remove()
    return count


def write_block(blocks: Iterable[Rankings], path: Path) -> None:
    """Write the rankings of a block to a file of its own."""
    write_rankings(path, Rankings.joined(list(blocks)))


def read_block(path: Path) -> Iterator[Rankings]:
    """Yield the rankings of a block's file, as the writer of a task does."""
    yield read_run(path)


def rank_to_run(
    retriever: Searcher | Loaded[Retriever],
    queries: Iterable[Query],
    path: str | Path,
    *,
    depth: int = 1000,
    engine: Engine | None = None,
) -> int:
    """Search for all queries with a retriever of any kind and write a TREC run; returns the number of queries.

    Each pass over an index serves 4,096 queries; hits are streamed, and the file appears once it is complete. engine:
    where the passes are made, by tasks that load a `Loaded` retriever of an index folder; in this process if None. They
    keep finished passes beside the file. A repeated call makes only the missing ones, on any engine, and uses none of
    another index, encoder, depth or block.

    Raises DrkitError without queries, or if one is empty or occurs twice.
    """
    if not isinstance(retriever, Loaded):
        return rank_to_file(retriever_blocks(retriever, queries, depth, size=QUERIES_PER_PASS), Path(path))
    state = [path_state(str(retriever.arguments[0])), dict(retriever.value.encoder.identity())]
    blocks = retriever_blocks(same_retriever(retriever), queries, depth, size=QUERIES_PER_PASS, state=state)
    return rank_to_file(blocks, Path(path), engine=engine, kept=FileChunks.beside(Path(path)))


def same_retriever(retriever: Loaded[Retriever]) -> Loaded[Retriever]:
    """Return a retriever that other processes refuse to work with if their encoder is another than this one's."""
    return retriever.checked(check_retriever, digest(dict(retriever.value.encoder.identity())))


def check_retriever(retriever: Retriever, identity: str) -> Retriever:
    """Return the retriever that a worker has loaded. Raises DrkitError if it has another encoder."""
    check_identity(retriever.encoder, identity)
    return retriever


def retriever_blocks(
    retriever: Searcher | Loaded[Searcher],
    queries: Iterable[Query],
    depth: int,
    *,
    exclude_self: bool = False,
    size: int | None = None,
    state: Sequence[Any] = (),
) -> Iterator[RankedBlock]:
    """Yield blocks of queries, ranked by a retriever of any kind.

    exclude_self: leave out the passage with the query's own id. size: queries in a block; None: 256. state: plain data
    that the rankings depend on, besides the queries and these settings.
    """
    for some in batched(queries, size or QUERIES_PER_SEARCH):
        query_ids, texts = [query.query_id for query in some], [query.text for query in some]
        given = (retriever, query_ids, texts, depth, exclude_self)
        yield RankedBlock(query_ids, [*state, texts, depth, exclude_self], rank_texts, given)


def rank_texts(
    retriever: Searcher | Loaded[Searcher],
    query_ids: Sequence[str],
    texts: Sequence[str],
    depth: int,
    exclude_self: bool,
) -> Iterator[Rankings]:
    """Search for some queries together, and yield their rankings. Raises DrkitError if a query is empty."""
    for query_id, text in zip(query_ids, texts, strict=True):
        if not text.strip():
            raise DrkitError(f"query {query_id!r} is empty; it must contain at least one word, or be removed")
    # One more hit, because the passage with the query's own id is dropped afterwards.
    found = find_rankings(loaded_value(retriever), query_ids, texts, depth + exclude_self)
    yield found.kept(~found.is_own).top(depth) if exclude_self else found


def reranked_blocks(
    run: Path,
    scorer: PairScorer | Loaded[PairScorer],
    *,
    queries: Mapping[str, str],
    corpus: StoredCorpus | Loaded[StoredCorpus],
    depth: int,
) -> Iterator[RankedBlock]:
    """Yield the queries of a file of rankings in blocks of 16,384 pairs, with the first `depth` passages re-ranked.

    queries, corpus: see `rerank`. Raises DrkitError if the run cannot be read.
    """
    for ranked in batched(read_run(run), max(1, WINDOW // depth)):
        query_ids = [query_id for query_id, _ in ranked]
        texts = {query_id: queries[query_id] for query_id in query_ids if query_id in queries}
        given = (scorer, ranked, texts, corpus, depth)
        yield RankedBlock(query_ids, [ranked, texts, depth], rerank_block, given)


def rerank_block(
    scorer: PairScorer | Loaded[PairScorer],
    ranked: Sequence[tuple[str, list[tuple[str, float]]]],
    queries: Mapping[str, str],
    corpus: StoredCorpus | Loaded[StoredCorpus],
    depth: int,
) -> Iterator[Rankings]:
    """Re-rank some queries of a run, and yield their rankings."""
    yield Rankings.of(rerank(ranked, loaded_value(scorer), queries=queries, corpus=loaded_value(corpus), depth=depth))
