"""Push vectors, and the passages they belong to, to a vector store of another project."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from attrs import frozen

from drkit.commands.inputs import NamedCollection, find_index, open_encoder
from drkit.commands.search import encode_collection
from drkit.core.files import SCRATCH, local_path
from drkit.core.registry import Installed
from drkit.core.types import Passage
from drkit.data.corpus import StoredCollection
from drkit.errors import DrkitError
from drkit.recipe.start import RECIPE
from drkit.search.flat import ABOUT as INDEX
from drkit.search.flat import IDS, VECTORS, check_vectors, read_about
from drkit.search.stores import ENTRIES_AT_ONCE, Content, Entries, StoreTarget, write_to_store
from drkit.search.vectors import ABOUT as SHARDS
from drkit.search.vectors import DocIds, Shards, Vectors

# Of each passage, what is pushed besides its vector and its id.
PAYLOADS = {"id": (), "title": ("title",), "text": ("title", "text")}


@frozen
class Pushed:
    """A finished push: the number and dimension of the vectors, and the pushed fields of the passages."""

    count: int
    dimension: int
    fields: tuple[str, ...]


def push_index(
    source: str | Path,
    target: StoreTarget,
    *,
    collection: NamedCollection | None = None,
    payload: str | None = None,
    replace: bool = False,
    pooling: str | None = None,
    device: str = "auto",
    on_progress: Callable[[int, int], None] | None = None,
    parts: Installed | None = None,
) -> Pushed:
    """Push the vectors of a run, an index or a folder of vectors, or those that an encoder makes, to a vector store.

    collection: the passages; None for those of a run. payload: a name of `PAYLOADS`; None: text if there are passages,
    else id. pooling, device: of an encoder; see `open_encoder`. on_progress: called with the numbers of vectors pushed
    and of all. Memory holds a batch, except for what the client of the store keeps.

    Raises DrkitError if the source has no vectors, they do not belong to the passages, or as `write_to_store` does.
    """
    path = local_path(source)
    passages = collection or (NamedCollection(str(path), parts=parts) if (path / RECIPE).is_file() else None)
    fields = PAYLOADS[payload or ("text" if passages else "id")]
    if fields and passages is None:
        raise DrkitError(f"{path} has vectors without texts; give their passages (--collection), or --payload id")
    with _opened(path, str(source), passages, pooling, device, parts) as vectors:
        batches = _entries(vectors, passages if fields else None, fields)
        count, dimension = vectors.rows.shape
        content = Content(count, dimension, fields, vectors.encoder, _reported(batches, count, on_progress))
        write_to_store(target, content, replace=replace)
    return Pushed(count, dimension, fields)


@frozen(eq=False)
class _StoredVectors:
    """Vectors [N,D] in files, their ids, and the identity of their encoder."""

    rows: Shards
    doc_ids: DocIds
    encoder: Any


@contextmanager
def _opened(
    path: Path,
    name: str,
    passages: NamedCollection | None,
    pooling: str | None,
    device: str,
    parts: Installed | None,
) -> Iterator[_StoredVectors]:
    """Open what the source is; the vectors of an encoder are made first, in a temporary folder."""
    if (path / RECIPE).is_file() or (path / INDEX).is_file():
        yield _of_index(find_index(path))
    elif (path / SHARDS).is_file():
        yield _of_folder(Vectors.open(path))
    elif passages is None:
        raise DrkitError(
            f"{name} is not a run, an index or a folder of vectors; for an encoder, give the passages that it encodes "
            f"(--collection)"
        )
    else:
        encoder = open_encoder(name, pooling=pooling, device=device, registry=parts.registry if parts else None)
        with TemporaryDirectory(prefix=SCRATCH) as folder:
            encode_collection(encoder, passages.name, folder, settings=passages.settings, parts=passages.parts)
            yield _of_folder(Vectors.open(folder))


def _of_index(folder: Path) -> _StoredVectors:
    about = read_about(folder)
    if not (folder / VECTORS).is_file():
        raise DrkitError(
            f"{folder} is an index of kind {about.get('kind')!r}, which keeps no vectors in a file of their own; push "
            f"the folder of vectors that it was built from, or its encoder with --collection"
        )
    found = _StoredVectors(Shards.read([folder / VECTORS]), DocIds.read([folder / IDS]), about.get("encoder"))
    if len(found.doc_ids) != len(found.rows):
        raise DrkitError(f"{folder}: {len(found.doc_ids)} ids do not match {len(found.rows)} vectors; rebuild it")
    return found


def _of_folder(vectors: Vectors) -> _StoredVectors:
    if vectors.about["role"] == "queries":
        raise DrkitError(f"{vectors.folder} holds vectors of queries; push those of passages")
    check_vectors(vectors.shards, vectors.doc_ids)
    return _StoredVectors(vectors.shards, vectors.doc_ids, vectors.encoder)


def _entries(vectors: _StoredVectors, passages: NamedCollection | None, fields: tuple[str, ...]) -> Iterator[Entries]:
    """Yield the vectors in batches, with the fields of their passages."""
    texts = _matching(passages) if passages else None
    for start, rows in vectors.rows.blocks(ENTRIES_AT_ONCE):
        doc_ids = vectors.doc_ids.take(np.arange(start, start + len(rows)))
        found = texts(doc_ids) if texts else []
        columns = {field: [getattr(passage, field) for passage in found] for field in fields}
        yield Entries(start, doc_ids, np.ascontiguousarray(rows, dtype=np.float32), columns)


def _matching(collection: NamedCollection) -> Callable[[list[str]], list[Passage]]:
    """Return a function that finds passages by id; if they are not stored, only in the order of the collection."""
    source = collection.source
    if isinstance(source, StoredCollection):
        return source.corpus.get_many
    stream = collection.passages()

    def following(doc_ids: list[str]) -> list[Passage]:
        found = list(islice(stream, len(doc_ids)))
        for expected, passage in zip(doc_ids, [*found, *[None] * (len(doc_ids) - len(found))], strict=True):
            if passage is None or passage.doc_id != expected:
                got = "its end" if passage is None else repr(passage.doc_id)
                raise DrkitError(
                    f"{collection.name} does not have the passages of these vectors, in their order: expected "
                    f"{expected!r}, got {got}; give the collection that was encoded"
                )
        return found

    return following


def _reported(
    batches: Iterator[Entries], count: int, on_progress: Callable[[int, int], None] | None
) -> Iterator[Entries]:
    for some in batches:
        yield some
        if on_progress:
            on_progress(some.first + len(some), count)
