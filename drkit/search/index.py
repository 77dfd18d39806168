"""Build an index of any kind from a folder of vectors, measure its recall, and open it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from drkit.core.files import check_replaceable
from drkit.errors import DrkitError
from drkit.search.approximate import Hnsw, HnswIndex, IvfPq, IvfPqIndex
from drkit.search.engines import make_engine
from drkit.search.flat import ABOUT, MEMORY, FlatIndex, read_about
from drkit.search.vectors import DocIds, Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

AnyIndex: TypeAlias = "FlatIndex | HnswIndex | IvfPqIndex"
KINDS: tuple[str, ...] = ("flat", "hnsw", "ivf-pq")
SAMPLE, DEPTH = 200, 10
# A measured recall below this share deserves a hint.
LOW_RECALL = 0.9


def build_index(
    vectors: Vectors | str | Path, folder: str | Path, *, kind: str = "flat", settings: Hnsw | IvfPq | None = None
) -> AnyIndex:
    """Build an index of a folder of vectors, save it, and return the saved index.

    kind: flat (exact), hnsw or ivf-pq; settings: of the last two. The recall of an approximate index is measured with
    the 10 nearest neighbours of 200 of its own vectors, and stored in its index.json as `recall@10`.

    Raises DrkitError if the vectors are incomplete or of queries, ids are not unique or values not finite, kind and
    settings do not match, or `folder` holds something other than an index.
    """
    check_replaceable(Path(folder), ABOUT)
    vectors = vectors if isinstance(vectors, Vectors) else Vectors.open(vectors)
    if vectors.about["role"] == "queries":
        raise DrkitError(
            f"{vectors.folder} holds vectors of queries, but an index needs passages; "
            f"encode them with `drkit encode --collection`"
        )
    if kind == "flat" and settings is None:
        FlatIndex.over(vectors).save(folder)
        return open_index(folder)
    matrix, ids = vectors.shards, vectors.doc_ids
    index: HnswIndex | IvfPqIndex
    if kind == "hnsw" and not isinstance(settings, IvfPq):
        settings = settings or Hnsw(half=matrix.dtype == np.float16)
        index = HnswIndex.build(matrix, ids, settings=settings, encoder=vectors.encoder)
    elif kind == "ivf-pq" and not isinstance(settings, Hnsw):
        index = IvfPqIndex.build(matrix, ids, settings=settings, encoder=vectors.encoder)
    else:
        given = f" with settings {type(settings).__name__}" if settings else ""
        raise DrkitError(f"unsupported index kind {kind!r}{given}; use one of: {', '.join(KINDS)}")
    index.describe(
        **{f"recall@{DEPTH}": round(recall(index, matrix, ids), 4), "recall_sample": min(SAMPLE, len(index))}
    )
    index.save(folder)
    return open_index(folder)


def open_index(folder: str | Path, *, memory: int = MEMORY) -> AnyIndex:
    """Open a saved index of any kind; memory: see `FlatIndex.load`.

    Raises DrkitError if it is missing or cannot be read.
    """
    kind = read_about(Path(folder)).get("kind", "flat")
    if kind == "flat":
        return FlatIndex.load(folder, memory=memory)
    if kind not in KINDS:
        raise DrkitError(f"{folder} holds an index of kind {kind!r}; drkit supports {', '.join(KINDS)}")
    return HnswIndex.load(folder) if kind == "hnsw" else IvfPqIndex.load(folder)


def recall(index: AnyIndex, vectors: Any, doc_ids: DocIds, *, sample: int = SAMPLE, depth: int = DEPTH) -> float:
    """Return the share of the exact `depth` nearest vectors that the index finds, for a sample of its vectors [N,D].

    A hit counts if it scores at least as high as the last exact one, since the order of ties is arbitrary.
    """
    positions = np.linspace(0, len(vectors) - 1, min(sample, len(vectors))).astype(np.int64)
    queries = np.ascontiguousarray(vectors[positions], dtype=np.float32)
    count = min(depth, len(index))
    exact, _ = make_engine(vectors).top(queries, count)
    found = [vectors[doc_ids.find(hits.doc_ids)] for hits in index.search(queries, count)]
    return float(np.mean([_share_found(*each) for each in zip(found, queries, exact, strict=True)]))


def _share_found(rows: NDArray[Any], query: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    least = exact[-1] - 1e-5 * abs(float(exact[-1])) - 1e-6
    return min(1.0, float((rows.astype(np.float32) @ query >= least).sum()) / len(exact))
