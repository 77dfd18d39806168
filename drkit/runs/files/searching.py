"""Encoding and searching of what has a name on the command line: collections, runs, folders, files of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import numpy as np

from drkit.core.ranks import Shard
from drkit.core.types import Query
from drkit.data.readers import read_topics
from drkit.data.tables import open_collection
from drkit.errors import DrkitError
from drkit.runs.execute import RECIPE
from drkit.runs.files.collections import kept_collection, named_collection
from drkit.runs.manifest import read_manifest
from drkit.search import Storage, Vectors, encode_corpus, write_run
from drkit.search.hits import batched
from drkit.search.identity import check_same_encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.search import AnyIndex, Encoder

AT_ONCE = 4096
Batch: TypeAlias = "tuple[Sequence[str], NDArray[np.float32]]"


def encode_collection(
    encoder: Encoder,
    collection: str,
    folder: str | Path,
    *,
    split: str | None = None,
    settings: Sequence[str] = (),
    storage: Storage | None = None,
    told: Callable[[int], None] | None = None,
) -> Vectors | None:
    """Encode the passages of a collection, or the queries of a split, into a folder of vectors.

    collection: a run's folder, or as `compose` takes it (`beir:FOLDER`), with its settings (`collection.limit=100`).
    storage: how they are kept; its role is set here. told: how many texts were read so far. None where other
    processes of a torchrun are still at theirs. Called again it goes on.

    Raises DrkitError as `encode_corpus` does, or where there is no such collection or split.
    """
    how = attrs.evolve(storage or Storage(), role="queries" if split else "passages")
    pairs = ((q.query_id, q.text) for q in queries_of(collection, split, settings)) if split else None
    texts = passages_of(collection, settings) if pairs is None else pairs
    return encode_corpus(encoder, _counted(texts, told), folder, storage=how, shard=Shard.of_environment())


def search_to_run(
    index: AnyIndex,
    queries: Iterable[Query] | Vectors,
    path: str | Path,
    *,
    encoder: Encoder | None = None,
    depth: int = 1000,
) -> int:
    """Search for all queries, texts or vectors that `drkit encode --split` made; a TREC run; returns how many.

    encoder: for texts. The index is gone through once for 4,096 queries; hits are written as they come, the file takes
    its place when it is whole.

    Raises DrkitError where vectors or encoder are not of the index' encoder, or a query has no text.
    """
    done = 0

    def rows() -> Iterator[tuple[str, Iterable[tuple[str, float]]]]:
        nonlocal done
        for names, vectors in _batches(index, queries, encoder):
            for name, hits in zip(names, index.stream(vectors, depth), strict=True):
                done += 1
                yield name, hits.pairs()

    write_run(Path(path), rows(), tag="drkit")
    return done


def find_index(folder: str | Path) -> Path:
    """The index of a run, or the folder itself. Raises DrkitError where a run has none yet, or there is no folder."""
    place = Path(folder)
    if not place.is_dir():
        raise DrkitError(f"no run at {place}, nor an index; `drkit compose` makes a run, `drkit index` an index")
    if not (place / RECIPE).is_file():
        return place
    if read_manifest(place / "index") is None:
        raise DrkitError(f"{place} has no finished index; `drkit run {place}` goes on where it was cut off")
    return place / "index"


def find_queries(text: str | Path) -> Iterable[Query] | Vectors:
    """The queries in a file (.tsv, .jsonl, .csv, TREC topics ..), or a folder of their vectors.

    Raises DrkitError where there is neither, or naming `file:line` at a line that is no query.
    """
    path = Path(text)
    if path.is_dir():
        found = Vectors.open(path)
        if found.about["role"] != "queries":
            raise DrkitError(f"{path} holds vectors of passages; `drkit encode --split test` makes those of queries")
        return found
    if not path.is_file():
        raise DrkitError(f"no file of queries {path}, nor a folder of their vectors")
    return (query for _, query in read_topics(path))


def queries_of(collection: str, split: str, settings: Sequence[str] = ()) -> Iterator[Query]:
    """The queries of a collection's split. Raises DrkitError where it has no such split."""
    run = kept_collection(collection)
    source = open_collection(run) if run else named_collection(collection, settings)
    splits = source.splits()
    if split not in splits:
        raise DrkitError(f"{collection} has no {split!r} queries; its splits: {', '.join(splits) or 'none'}")
    return iter(source.queries(split))


def passages_of(collection: str, settings: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """(id, title and text) of every passage of a collection, streamed."""
    run = kept_collection(collection)
    passages = iter(open_collection(run).corpus) if run else named_collection(collection, settings).passages()
    return ((passage.doc_id, passage.content) for passage in passages)


def _counted(texts: Iterable[tuple[str, str]], told: Callable[[int], None] | None) -> Iterator[tuple[str, str]]:
    for done, pair in enumerate(texts, start=1):
        if told and done % 1000 == 0:
            told(done)
        yield pair


def _batches(index: AnyIndex, queries: Iterable[Query] | Vectors, encoder: Encoder | None) -> Iterator[Batch]:
    if isinstance(queries, Vectors):
        check_same_encoder(index.encoder, queries.encoder, "the index")
        names = queries.doc_ids
        for start in range(0, len(queries), AT_ONCE):
            block = np.asarray(queries.shards[start : start + AT_ONCE], dtype=np.float32)
            yield names.take(np.arange(start, start + len(block))), block
        return
    if encoder is None:
        raise DrkitError("an index alone cannot read queries: give the encoder that it was made with (--encoder)")
    check_same_encoder(index.encoder, encoder.identity(), "the index")
    for batch in batched(queries, AT_ONCE):
        if empty := [query.query_id for query in batch if not query.text.strip()]:
            raise DrkitError(f"query {empty[0]!r} is empty; give it at least one word, or leave it out")
        yield [query.query_id for query in batch], encoder.encode_queries([query.text for query in batch])
