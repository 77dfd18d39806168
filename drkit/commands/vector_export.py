"""Export vectors, with the ids and texts of their passages, to one Parquet file, which vector stores read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from drkit.commands.collections import NamedCollection
from drkit.commands.inputs import find_index
from drkit.core.files import local_path, replacing
from drkit.core.types import Passage
from drkit.errors import DrkitError
from drkit.recipe.start import RECIPE
from drkit.search.flat import IDS, VECTORS, check_vectors, read_index_file, reading_index
from drkit.search.flat import INDEX_FILE as INDEX
from drkit.search.vectors import SHARDS_FILE as SHARDS
from drkit.search.vectors import DocIds, Shards, Vectors

# The key in the file's metadata that holds the identity of the encoder, and marks files that may be replaced.
MARK = b"drkit"
# Passages that are read and written at once: one row group of the file.
_ROWS = 4096


def export_vectors(
    source: str | Path,
    file: str | Path,
    *,
    collection: NamedCollection | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Write the vectors of a run, an index or a folder of vectors to a Parquet file; returns their shape (N, D).

    Columns: `id`; `text`, the passage's title and text, if its collection is known; `vector`, a fixed-size list of D
    float32. collection: the passages that were encoded; None for those of a run. on_progress: called with the numbers
    of vectors written and of all. Memory holds `ROWS` passages. The file appears when it is complete.

    Raises DrkitError if the source has no vectors, they are not those of the passages, in their order, or the file
    exists and was not written by this function.
    """
    path, target = local_path(source), local_path(file)
    _check_replaceable(target)
    if collection is None and (path / RECIPE).is_file():
        collection = NamedCollection(str(path))
    vectors, doc_ids, encoder = _open_vectors(path)
    check_vectors(vectors, doc_ids)
    count, dimension = vectors.shape
    fields = {
        "id": pa.large_string(),
        **({"text": pa.large_string()} if collection else {}),
        "vector": pa.list_(pa.float32(), dimension),
    }
    schema = pa.schema(fields, metadata={MARK: json.dumps({"encoder": encoder}, ensure_ascii=False)})
    passages = collection.passages() if collection else None
    with replacing(target) as temporary, pq.ParquetWriter(temporary, schema, use_dictionary=False) as writer:
        for start, block in vectors.blocks(_ROWS):
            names = doc_ids.take(np.arange(start, start + len(block)))
            flat = pa.array(np.ascontiguousarray(block, dtype=np.float32).reshape(-1))
            columns = {"id": names, "vector": pa.FixedSizeListArray.from_arrays(flat, dimension)}
            if passages:
                columns["text"] = list(_next_texts(passages, names))
            writer.write_batch(pa.record_batch([columns[name] for name in schema.names], schema=schema))
            if on_progress:
                on_progress(start + len(block), count)
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


def _open_vectors(path: Path) -> tuple[Shards, DocIds, Mapping[str, Any] | None]:
    """Return stored vectors [N,D], their ids, and the identity of their encoder (None: unknown)."""
    if (path / SHARDS).is_file():
        opened = Vectors.open(path)
        return opened.shards, opened.doc_ids, opened.encoder
    if not (path / RECIPE).is_file() and not (path / INDEX).is_file():
        raise DrkitError(
            f"{path} is not a run, an index or a folder of vectors; encode a collection first: "
            f"drkit encode --encoder {path} --collection NAME -o VECTORS"
        )
    folder = find_index(path)
    about = read_index_file(folder)
    if not (folder / VECTORS).is_file():
        raise DrkitError(
            f"{folder} is an index of kind {about.get('kind')!r}, which keeps codes instead of vectors; give the "
            f"folder of vectors that it was built from"
        )
    with reading_index(folder):
        return Shards.read([folder / VECTORS]), DocIds.read([folder / IDS]), about.get("encoder")


def _next_texts(passages: Iterator[Passage], doc_ids: Sequence[str]) -> Iterator[str]:
    """Yield the texts of the next passages. Raises DrkitError if they do not have these ids."""
    for expected in doc_ids:
        passage = next(passages, None)
        if passage is None or passage.doc_id != expected:
            got = "its end" if passage is None else repr(passage.doc_id)
            raise DrkitError(
                f"the collection does not have the passages of these vectors, in their order: expected {expected!r}, "
                f"got {got}; give the collection that was encoded"
            )
        yield passage.content
