"""Indexes of any kind: built from a folder of vectors, measured against exact search, opened again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from drkit.core.files import check_replaceable
from drkit.errors import DrkitError
from drkit.search.exact import make_engine
from drkit.search.hnsw import Hnsw, HnswIndex
from drkit.search.ids import DocIds
from drkit.search.index import MEMORY, FlatIndex
from drkit.search.index_files import ABOUT, read_about
from drkit.search.ivf_pq import IvfPq, IvfPqIndex
from drkit.search.vectors import Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

AnyIndex: TypeAlias = "FlatIndex | HnswIndex | IvfPqIndex"
KINDS: tuple[str, ...] = ("flat", "hnsw", "ivf-pq")
SAMPLE, DEPTH = 200, 10


def build_index(
    vectors: Vectors | str | Path, folder: str | Path, *, kind: str = "flat", settings: Hnsw | IvfPq | None = None
) -> AnyIndex:
    """Build an index of a folder of vectors and save it; the saved index is given back.

    kind: flat (exact), hnsw or ivf-pq; settings: of the last two. How many of the 10 nearest neighbours of 200 of its
    own vectors an approximate index finds is measured, and stands in its index.json as `recall@10`.

    Raises DrkitError where vectors are unfinished or those of queries, ids repeated or values not finite, kind and
    settings do not fit, or `folder` holds something else than an index.
    """
    check_replaceable(Path(folder), ABOUT)
    made_of = vectors if isinstance(vectors, Vectors) else Vectors.open(vectors)
    if made_of.about["role"] == "queries":
        raise DrkitError(
            f"{made_of.folder} holds vectors of queries; an index is made of passages (drkit encode --collection)"
        )
    matrix, ids, encoder = made_of.shards, made_of.doc_ids, made_of.encoder
    if kind == "flat" and settings is None:
        FlatIndex.build(matrix, ids, encoder=encoder).save(folder)
        return open_index(folder)
    index: HnswIndex | IvfPqIndex
    if kind == "hnsw" and settings is None:
        settings = Hnsw(half=matrix.dtype == np.float16)
    if kind == "hnsw" and not isinstance(settings, IvfPq):
        index = HnswIndex.build(matrix, ids, settings=settings, encoder=encoder)
    elif kind == "ivf-pq" and not isinstance(settings, Hnsw):
        index = IvfPqIndex.build(matrix, ids, settings=settings, encoder=encoder)
    else:
        raise DrkitError(
            f"no index of kind {kind!r} with settings {type(settings).__name__}; the kinds are {', '.join(KINDS)}"
        )
    index.describe(
        **{f"recall@{DEPTH}": round(recall(index, matrix, ids), 4), "recall_sample": min(SAMPLE, len(index))}
    )
    index.save(folder)
    return open_index(folder)


def open_index(folder: str | Path, *, memory: int = MEMORY) -> AnyIndex:
    """The index that was saved in a folder, of whatever kind; memory: as for `FlatIndex.load`.

    Raises DrkitError where there is none, or it cannot be read.
    """
    kind = read_about(Path(folder)).get("kind", "flat")
    if kind == "flat":
        return FlatIndex.load(folder, memory=memory)
    if kind not in KINDS:
        raise DrkitError(f"{folder} holds an index of kind {kind!r}; drkit reads {', '.join(KINDS)}")
    return HnswIndex.load(folder) if kind == "hnsw" else IvfPqIndex.load(folder)


def recall(index: AnyIndex, vectors: Any, doc_ids: DocIds, *, sample: int = SAMPLE, depth: int = DEPTH) -> float:
    """The share of the exact `depth` nearest vectors that the index finds, for an even sample of its vectors [N,D].

    Vectors that score no less than the last of the exact ones count as found: which of equal ones stands is chance.
    """
    places = np.linspace(0, len(vectors) - 1, min(sample, len(vectors))).astype(np.int64)
    queries = np.ascontiguousarray(vectors[places], dtype=np.float32)
    wanted = min(depth, len(index))
    exact, _ = make_engine(vectors).top(queries, wanted)
    found = [doc_ids.find(hits.doc_ids) for hits in index.search(queries, wanted)]
    return float(np.mean([_share(vectors[at], *of) for at, *of in zip(found, queries, exact, strict=True)]))


def _share(rows: NDArray[Any], query: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    least = exact[-1] - 1e-5 * abs(float(exact[-1])) - 1e-6
    return min(1.0, float((rows.astype(np.float32) @ query >= least).sum()) / len(exact))
