"""Export vectors, with the ids and texts of their passages, to one Parquet file, which vector stores read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import frozen

from drkit.commands.collections import NamedCollection
from drkit.commands.inputs import find_index
from drkit.core.files import local_path, replacing
from drkit.core.types import Passage
from drkit.data.corpus import StoredCollection
from drkit.errors import DrkitError
from drkit.recipe.start import RECIPE
from drkit.search.flat import ABOUT as INDEX
from drkit.search.flat import IDS, VECTORS, check_vectors, read_about, reading_index
from drkit.search.vectors import ABOUT as SHARDS
from drkit.search.vectors import DocIds, Shards, Vectors

# The key in the file's metadata that holds the identity of the encoder, and marks files that may be replaced.
MARK = b"drkit"
# Passages that are read and written at once: one row group of the file.
ROWS = 4096


def export_vectors(
    source: str | Path,
    file: str | Path,
    *,
    collection: NamedCollection | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Write the vectors of a run, an index or a folder of vectors to a Parquet file; returns their shape (N, D).

    Columns: `id`; `text`, the passage's title and text, if its collection is known; `vector`, a fixed-size list of D
    float32. collection: the passages; None for those of a run. on_progress: called with the numbers of vectors written
    and of all. Memory holds `ROWS` passages. The file appears when it is complete.

    Raises DrkitError if the source has no vectors, they do not belong to the passages, or the file exists and was not
    written by this function.
    """
    path, target = local_path(source), local_path(file)
    _check_replaceable(target)
    if collection is None and (path / RECIPE).is_file():
        collection = NamedCollection(str(path))
    vectors = _open(path)
    count, dimension = vectors.rows.shape
    fields = {
        "id": pa.large_string(),
        **({"text": pa.large_string()} if collection else {}),
        "vector": pa.list_(pa.float32(), dimension),
    }
    schema = pa.schema(fields, metadata={MARK: json.dumps({"encoder": vectors.encoder}, ensure_ascii=False)})
    with replacing(target) as temporary, pq.ParquetWriter(temporary, schema, use_dictionary=False) as writer:
        done = 0
        for batch in _batches(vectors, collection, schema):
            writer.write_batch(batch)
            done += len(batch)
            if on_progress:
                on_progress(done, count)
    return count, dimension


def _check_replaceable(file: Path) -> None:
    if not file.is_file():
        return
    try:
        is_ours = MARK in (pq.read_schema(file).metadata or {})
    except (OSError, pa.ArrowException):
        is_ours = False
    if not is_ours:
        raise DrkitError(f"{file} exists and holds no exported vectors; remove it, or choose another file")


@frozen(eq=False)
class _StoredVectors:
    """Vectors [N,D] in files, their ids, and the identity of their encoder (None: unknown)."""

    rows: Shards
    doc_ids: DocIds
    encoder: Mapping[str, Any] | None


def _open(path: Path) -> _StoredVectors:
    if (path / SHARDS).is_file():
        vectors = Vectors.open(path)
        found = _StoredVectors(vectors.shards, vectors.doc_ids, vectors.encoder)
    elif (path / RECIPE).is_file() or (path / INDEX).is_file():
        found = _of_index(find_index(path))
    else:
        raise DrkitError(
            f"{path} is not a run, an index or a folder of vectors; encode a collection first: "
            f"drkit encode --encoder {path} --collection NAME -o VECTORS"
        )
    check_vectors(found.rows, found.doc_ids)
    return found


def _of_index(folder: Path) -> _StoredVectors:
    about = read_about(folder)
    if not (folder / VECTORS).is_file():
        raise DrkitError(
            f"{folder} is an index of kind {about.get('kind')!r}, which keeps codes instead of vectors; give the "
            f"folder of vectors that it was built from"
        )
    with reading_index(folder):
        return _StoredVectors(Shards.read([folder / VECTORS]), DocIds.read([folder / IDS]), about.get("encoder"))


def _batches(vectors: _StoredVectors, collection: NamedCollection | None, schema: Any) -> Iterator[Any]:
    """Yield record batches of the file."""
    passages = _finder(collection) if collection else None
    for start, rows in vectors.rows.blocks(ROWS):
        doc_ids = vectors.doc_ids.take(np.arange(start, start + len(rows)))
        flat = pa.array(np.ascontiguousarray(rows, dtype=np.float32).reshape(-1))
        columns = {
            "id": doc_ids,
            **({"text": [passage.content for passage in passages(doc_ids)]} if passages else {}),
            "vector": pa.FixedSizeListArray.from_arrays(flat, rows.shape[1]),
        }
        yield pa.record_batch(columns, schema=schema)


def _finder(collection: NamedCollection) -> Callable[[list[str]], list[Passage]]:
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
