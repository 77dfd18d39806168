"""Encode the passages or queries of a collection, search an index for many queries; fuse and re-rank rankings."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
from attrs import frozen

from drkit.commands.inputs import NamedCollection
from drkit.core.engine import Engine, Loaded, Task
from drkit.core.files import replacing
from drkit.core.registry import Installed
from drkit.core.types import Query
from drkit.data.rows import batched
from drkit.errors import DrkitError
from drkit.runs.manifest import digest
from drkit.runs.stage import path_state
from drkit.search import Storage, Vectors, encode_corpus, read_run, rerank, write_run
from drkit.search.encode import same_everywhere
from drkit.search.rankings import check_same_encoder
from drkit.search.reranking import in_order

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.search import AnyIndex, Encoder
    from drkit.search.fusion import FusedRow, Searcher
    from drkit.search.rankings import RunRow
    from drkit.search.reranking import Scorer

QUERIES_PER_PASS, QUERIES_PER_SEARCH = 4096, 256
_NO_ENCODER = "searching for texts needs the encoder that the index was built with: give it with --encoder"
_NO_QUERIES = "no queries to search for: the file is empty; give a file with one query per line"
Batch: TypeAlias = "tuple[Sequence[str], NDArray[np.float32]]"


def encode_collection(
    encoder: Encoder | Loaded[Encoder],
    collection: str,
    folder: str | Path,
    *,
    split: str | None = None,
    settings: Sequence[str] = (),
    storage: Storage | None = None,
    on_progress: Callable[[int], None] | None = None,
    parts: Installed | None = None,
    engine: Engine | None = None,
) -> Vectors | None:
    """Encode the passages of a collection, or the queries of a split, into a folder of vectors.

    encoder, engine: see `encode_corpus`. collection, settings, parts: see `NamedCollection`. storage: how vectors are
    stored; its role is set here. on_progress: called with the number of texts read so far. Returns None while other
    processes of a torchrun still write their shards. Repeated calls resume.

    Raises DrkitError as `encode_corpus` does, or if the collection or split does not exist.
    """
    source = NamedCollection(collection, tuple(settings), parts)
    queries = ((q.query_id, q.text) for q in source.queries(split)) if split else None
    texts = _counted(queries or source.contents(), on_progress)
    role = "queries" if split else "passages"
    made = attrs.evolve(storage or Storage(), role=role)
    return encode_corpus(encoder, texts, folder, storage=made, engine=engine)


def search_to_run(
    index: AnyIndex,
    queries: Iterable[Query] | Vectors,
    path: str | Path,
    *,
    encoder: Encoder | None = None,
    depth: int = 1000,
) -> int:
    """Search for all queries (texts, or vectors from `drkit encode --split`) and write a TREC run; returns the number.

    encoder: required for texts. Each pass over the index serves 4,096 queries; hits are streamed, and the file appears
    once it is complete.

    Raises DrkitError if vectors or encoder do not match the index, there are no queries, or one is empty.
    """
    rows = (
        (name, hits.pairs())
        for names, vectors in _batches(index, queries, encoder)
        for name, hits in zip(names, index.stream(vectors, depth), strict=True)
    )
    return write_run(Path(path), _at_least_one(rows), tag="drkit")


def search_in_parts(
    index: Loaded[AnyIndex],
    folder: Path,
    queries: Iterable[Query] | Vectors,
    path: str | Path,
    *,
    engine: Engine,
    encoder: Loaded[Encoder] | None = None,
    depth: int = 1000,
) -> int:
    """Search for all queries on an engine and write the TREC run that `search_to_run` writes; returns the number.

    folder: of the index. Each task ranks a block of 4,096 queries and writes a part beside the file. A repeated call
    does only the missing ones, on any engine, and parts of another index, encoder, depth or block are not used.

    Raises DrkitError as `search_to_run` does, or for a duplicate query.
    """
    parts, seen = Parts(Path(path)), set[str]()
    identity = _identity(queries, encoder.value if encoder else None)
    check_same_encoder(index.value.encoder, identity, "the index")
    if encoder is not None:
        encoder = same_everywhere(encoder, identity)
    state = [path_state(str(folder)), dict(identity), depth]
    made: list[Path] = []

    def tasks() -> Iterator[Task[None]]:
        for number, block in enumerate(_blocks(queries)):
            names, content = block.describe()
            if repeated := seen.intersection(names):
                raise DrkitError(f"duplicate query {min(repeated)!r}; every query needs its own id")
            seen.update(names)
            made.append(parts.file(number, digest([*state, content])))
            if not made[-1].is_file():
                given = (index, encoder, block, depth, made[-1])
                yield Task(f"queries {len(seen) - len(names) + 1} to {len(seen)}", rank_block, given, accelerated=True)

    for _ in engine.run(tasks()):
        pass
    if not made:
        raise DrkitError(_NO_QUERIES)
    parts.join(made)
    return len(seen)


def rank_block(
    index: Loaded[AnyIndex], encoder: Loaded[Encoder] | None, block: QueryBlock, depth: int, part: Path
) -> None:
    """Search for the queries of a block and write their rankings. Raises DrkitError as `search_to_run` does."""
    names, vectors = block.encode(encoder.value if encoder else None)
    found = zip(names, index.value.stream(vectors, depth), strict=True)
    write_run(part, ((name, hits.pairs()) for name, hits in found), tag="drkit")


@frozen
class QueryBlock:
    """Queries that are searched in one pass: their texts, or their vectors from `start` on in a folder."""

    texts: Sequence[Query] = ()
    folder: Path | None = None
    start: int = 0

    def describe(self) -> tuple[Sequence[str], Any]:
        """Return the ids, and plain data that tells this block from others."""
        if self.folder is None:
            return [query.query_id for query in self.texts], [[query.query_id, query.text] for query in self.texts]
        return self.encode(None)[0], [path_state(str(self.folder)), self.start]

    def encode(self, encoder: Encoder | None) -> Batch:
        """Return ids and vectors. Raises DrkitError for an empty query, or texts without an encoder."""
        if self.folder is not None:
            vectors = Vectors.open(self.folder)
            found = np.asarray(vectors.shards[self.start : self.start + QUERIES_PER_PASS], dtype=np.float32)
            return vectors.doc_ids.take(np.arange(self.start, self.start + len(found))), found
        if encoder is None:
            raise DrkitError(_NO_ENCODER)
        if empty := [query.query_id for query in self.texts if not query.text.strip()]:
            raise DrkitError(f"query {empty[0]!r} is empty; it must contain at least one word, or be removed")
        return [query.query_id for query in self.texts], encoder.encode_queries([query.text for query in self.texts])


@frozen
class Parts:
    """Parts of a file, beside it, until it is complete."""

    path: Path

    @property
    def folder(self) -> Path:
        """The folder of the parts."""
        return self.path.with_name(f".{self.path.name}.parts")

    def file(self, number: int, content: str) -> Path:
        """Return the file of a part; content: a hash of everything that it is made from."""
        return self.folder / f"{number:05d}-{content}"

    def join(self, files: Sequence[Path]) -> None:
        """Write the file out of its parts, in this order, and remove them."""
        with replacing(self.path) as temporary, temporary.open("wb") as whole:
            for part in files:
                with part.open("rb") as content:
                    shutil.copyfileobj(content, whole)
        shutil.rmtree(self.folder, ignore_errors=True)


def rank_to_run(retriever: Searcher, queries: Iterable[Query], path: str | Path, *, depth: int = 1000) -> int:
    """Search for all queries with a retriever of any kind and write a TREC run; returns the number of queries.

    Raises DrkitError if there are no queries, or one is empty.
    """
    rows = (
        (query.query_id, hits.pairs())
        for batch in batched(queries, QUERIES_PER_SEARCH)
        for query, hits in zip(batch, retriever.search([query.text for query in batch], depth), strict=True)
    )
    return write_run(Path(path), _at_least_one(rows), tag="drkit")


def _at_least_one(rows: Iterator[RunRow]) -> Iterator[RunRow]:
    """Pass the rows on. Raises DrkitError if there are none."""
    first = next(rows, None)
    if first is None:
        raise DrkitError(_NO_QUERIES)
    yield first
    yield from rows


def _counted(texts: Iterable[tuple[str, str]], on_progress: Callable[[int], None] | None) -> Iterator[tuple[str, str]]:
    for done, pair in enumerate(texts, start=1):
        if on_progress and done % 1000 == 0:
            on_progress(done)
        yield pair


def _blocks(queries: Iterable[Query] | Vectors) -> Iterator[QueryBlock]:
    if isinstance(queries, Vectors):
        yield from (QueryBlock((), queries.folder, start) for start in range(0, len(queries), QUERIES_PER_PASS))
        return
    yield from map(QueryBlock, batched(queries, QUERIES_PER_PASS))


def _identity(queries: Iterable[Query] | Vectors, encoder: Encoder | None) -> Mapping[str, Any]:
    """Return the identity of the encoder of the queries. Raises DrkitError for texts without an encoder."""
    if isinstance(queries, Vectors):
        return queries.encoder
    if encoder is None:
        raise DrkitError(_NO_ENCODER)
    return encoder.identity()


def _batches(index: AnyIndex, queries: Iterable[Query] | Vectors, encoder: Encoder | None) -> Iterator[Batch]:
    check_same_encoder(index.encoder, _identity(queries, encoder), "the index")
    for block in _blocks(queries):
        yield block.encode(encoder)


def fuse_files(
    first: Path, second: Path, output: Path, fuse: Callable[[Iterator[RunRow], Iterator[RunRow]], Iterator[FusedRow]]
) -> tuple[int, int]:
    """Write the fusion of two run files; returns the number of queries, and how many of them both files rank.

    fuse: for example `reciprocal_ranks`. Memory holds the second file.

    Raises DrkitError for a file that cannot be read (naming the line), or files without a common query.
    """
    ids: tuple[set[str], set[str]] = (set(), set())

    def rows() -> Iterator[FusedRow]:
        yield from fuse(_noted(first, ids[0]), _noted(second, ids[1]))
        if not ids[0] & ids[1]:  # before the file is moved into place
            raise DrkitError(
                f"{first} ({len(ids[0]):,} queries) and {second} ({len(ids[1]):,}) have no query in common; "
                f"give two rankings of the same queries"
            )

    write_run(output, rows(), tag="fused")
    return len(ids[0] | ids[1]), len(ids[0] & ids[1])


def _noted(path: Path, ids: set[str]) -> Iterator[RunRow]:
    """Yield the rows of a run file, and add their queries to `ids`."""
    for query_id, hits in read_run(path):
        ids.add(query_id)
        yield query_id, hits


def rerank_file(
    run: Path,
    scorer: Scorer,
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
    doc_ids = {
        doc_id for query, hits in read_run(run) if query in queries for doc_id, _ in in_order(hits)[: max(depth, 1)]
    }
    if not doc_ids:
        raise DrkitError(
            f"{run}: none of its queries is among the {split} queries of {collection.name}; give the collection of "
            f"the run (--collection), or another split (--split)"
        )
    texts = texts_of(collection, doc_ids)
    if not texts:
        raise DrkitError(f"{run}: none of its passages is in {collection.name}; give the collection of the run")
    counts = Counter[str]()

    def rows() -> Iterator[tuple[str, list[tuple[str, float]]]]:
        for row in rerank(read_run(run), scorer, queries=queries, corpus=texts, depth=depth, missing=counts):
            counts["ranked"] += row[0] in queries
            if on_progress:
                on_progress(counts["ranked"])
            yield row

    write_run(output, rows(), tag="reranker")
    return counts


def texts_of(collection: NamedCollection, doc_ids: set[str]) -> dict[str, str]:
    """Return the texts of these passages by id, as far as the collection has them, in one pass."""
    return {doc_id: text for doc_id, text in collection.contents() if doc_id in doc_ids}
