"""Indexes of any kind: build them from a folder of vectors, and open them; approximate ones are indexes of faiss.

Exact indexes are drkit's own (`flat`, `inverted`). Those of faiss have a kind (hnsw, int8 ..) or a factory string;
their hits may be scored again with the vectors, and their recall is measured when they are built.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from attrs import asdict, field, frozen
from attrs.validators import ge, in_
from numpy.typing import NDArray

from drkit.core.files import check_replaceable, replacing_folder
from drkit.errors import DrkitError
from drkit.search.flat import (
    FAISS,
    IDS,
    MEMORY,
    VECTORS,
    Candidates,
    FlatIndex,
    check_search,
    check_vectors,
    dot_products,
    faiss_library,
    read_index_file,
    reading_index,
    score_positions,
    write_about,
    write_vectors,
)
from drkit.search.inverted import InvertedIndex
from drkit.search.rankings import Found, Hits
from drkit.search.vectors import DocIds, Shards, Vectors, float32_blocks

_LOGGER = logging.getLogger(__name__)
AnyIndex: TypeAlias = "FlatIndex | FaissIndex | InvertedIndex"
RESCORE = (WITH_VECTORS, WITH_CODES) = ("vectors", "codes")
_SAMPLE, _DEPTH = 200, 10
# A measured recall below this share deserves a hint.
LOW_RECALL = 0.9
MIN_VECTORS_FOR_PQ = 256
_TRAIN_PER_LIST, _TRAIN_MAX, _BATCH = 64, 500_000, 1024


@frozen
class FaissSettings:
    """Settings of `FaissIndex`; empty ones and 0 depend on the kind of index.

    parameters: faiss's parameters of building and searching, such as `nprobe=64`; they come after those of the kind.
    rescore: score candidates with the `vectors`, which are stored too, or only with their `codes`, decoded. candidates:
    how many are scored for each requested hit.
    """

    parameters: str = ""
    rescore: str = field(default="", validator=in_(("", *RESCORE)))
    candidates: int = field(default=0, validator=ge(0))


# Factory string of faiss, and settings.
_KINDS = {
    "hnsw": ("HNSW32", FaissSettings("efConstruction=200,efSearch=128", WITH_CODES, 1)),
    "int8": ("SQ8", FaissSettings("", WITH_VECTORS, 4)),
    "binary": ("RaBitQ", FaissSettings("", WITH_VECTORS, 4)),
}
_KIND_NAMES = ("flat", "hnsw", "ivf-pq", "int8", "binary")


def faiss_kind(kind: str, count: int, dimension: int, *, half: bool = False) -> tuple[str, FaissSettings]:
    """Return faiss's factory string, and the settings, of a kind of index for `count` vectors of `dimension`.

    kind: as in `build_index`; half: the vectors are float16. Raises DrkitError for fewer vectors than ivf-pq needs.

    >>> faiss_kind("ivf-pq", 1000, 384)
    ('IVF25,PQ48np', FaissSettings(parameters='nprobe=16', rescore='codes', candidates=1))
    >>> faiss_kind("PCA64,SQ8", 1000, 384)
    ('PCA64,SQ8', FaissSettings(parameters='', rescore='vectors', candidates=4))
    """
    if kind == "ivf-pq":
        return _ivf_pq(count, dimension)
    factory, settings = _KINDS.get(kind, (kind, FaissSettings("", WITH_VECTORS, 4)))
    return ("HNSW32_SQfp16" if kind == "hnsw" and half else factory), settings


def _ivf_pq(count: int, dimension: int) -> tuple[str, FaissSettings]:
    """Choose 4 times the square root of N lists, with at least 39 vectors each, and a byte for 8 numbers.

    np: no polysemous training, which takes seconds for each byte, and which no search here uses.
    """
    if count < MIN_VECTORS_FOR_PQ:
        raise DrkitError(
            f"an ivf-pq index needs at least {MIN_VECTORS_FOR_PQ} vectors to learn its codes, got {count}; "
            f"use a flat index, which is exact and as fast at this size"
        )
    lists = max(1, min(int(4 * math.sqrt(count)), count // 39))
    code_bytes = max(size for size in range(1, max(1, dimension // 8) + 1) if dimension % size == 0)
    probes = min(lists, max(16, lists // 8))
    return f"IVF{lists},PQ{code_bytes}np", FaissSettings(f"nprobe={probes}", WITH_CODES, 1)


def check_kind(kind: str, dimension: int, count: int | None = None) -> None:
    """Check that an index of a kind can be built; count: how many vectors it will have, or None if unknown.

    Raises DrkitError if faiss does not know the kind or cannot build it for vectors of `dimension`, and
    MissingExtraError without faiss.
    """
    if kind != "flat":
        _new_index(*faiss_kind(kind, count or MIN_VECTORS_FOR_PQ, dimension), dimension, count)


def build_index(
    vectors: Vectors | str | Path, folder: str | Path, *, kind: str = "flat", settings: FaissSettings | None = None
) -> AnyIndex:
    """Build an index of a folder of vectors, save it, and return the saved index.

    kind: flat (exact; of sparse vectors, an inverted index), hnsw, ivf-pq, int8, binary, or a factory string of faiss,
    such as `IVF1024,PQ32`. settings: of all but flat. The recall of an approximate index is measured with the 10
    nearest neighbours of 200 of its own vectors, and stored in its index.json as `recall@10`.

    Raises DrkitError if the vectors are incomplete or of queries, ids are not unique or values not finite, kind and
    settings do not suit the vectors, or `folder` holds something other than an index.
    """
    check_replaceable(Path(folder))
    vectors = vectors if isinstance(vectors, Vectors) else Vectors.open(vectors)
    if vectors.about["role"] == "queries":
        raise DrkitError(
            f"{vectors.folder} holds vectors of queries, but an index needs passages; "
            f"encode them with `drkit encode --collection`"
        )
    if kind == "flat":
        if settings is not None:
            raise DrkitError("a flat index has no settings: it is exact; choose another kind, or leave them out")
        exact_index(vectors).save(folder)
        return open_index(folder)
    if vectors.is_sparse:
        raise DrkitError(
            f"{vectors.folder} holds sparse vectors, which are searched exactly by an inverted index, not by an index "
            f"of kind {kind!r}; use flat"
        )
    check_kind(kind, vectors.dimension, len(vectors))  # before all vectors are read
    matrix, ids = vectors.shards, vectors.doc_ids
    index = FaissIndex.build(matrix, ids, kind=kind, settings=settings, encoder=vectors.encoder)
    index.facts = {f"recall@{_DEPTH}": round(recall(index, matrix, ids), 4), "recall_sample": min(_SAMPLE, len(index))}
    index.save(folder)
    return open_index(folder)


def exact_index(vectors: Vectors) -> FlatIndex | InvertedIndex:
    """Return an exact index over an opened folder of vectors: an inverted index if they are sparse, else a flat one."""
    return InvertedIndex.over(vectors) if vectors.is_sparse else FlatIndex.over(vectors)


def open_index(folder: str | Path, *, memory: int = MEMORY) -> AnyIndex:
    """Open a saved index of any kind; memory: see `FlatIndex.load`.

    Raises DrkitError if it is missing, cannot be read, or has changed since it was written (a file above 4 GB: by its
    size).
    """
    kind = read_index_file(Path(folder)).get("kind", "flat")
    _LOGGER.info("opening the %s index %s", kind, folder)
    if kind == InvertedIndex.kind:
        return InvertedIndex.load(folder)
    return FlatIndex.load(folder, memory=memory) if kind == "flat" else FaissIndex.load(folder)


def recall(index: AnyIndex, vectors: Any, doc_ids: DocIds) -> float:
    """Return the share of the exact 10 nearest vectors that the index finds, for 200 of its own vectors [N,D].

    A hit counts if it scores at least as high as the last exact one, since the order of ties is arbitrary.
    """
    positions = np.linspace(0, len(vectors) - 1, min(_SAMPLE, len(vectors))).astype(np.int64)
    queries = np.ascontiguousarray(vectors[positions], dtype=np.float32)
    count = min(_DEPTH, len(index))
    exact, _ = Candidates(vectors).top(queries, count)
    found = [vectors[doc_ids.find(hits.doc_ids)] for hits in index.search(queries, count)]
    return float(np.mean([_share_found(*each) for each in zip(found, queries, exact, strict=True)]))


def _share_found(rows: NDArray[Any], query: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    least = exact[-1] - 1e-5 * abs(float(exact[-1])) - 1e-6
    return min(1.0, float((rows.astype(np.float32) @ query >= least).sum()) / len(exact))


class FaissIndex:
    """An index of faiss, the ids of its vectors, and, if its hits are scored again, the vectors in their file.

    Create one with `build` or `load`. kind: as in `build_index`. encoder: the identity of the encoder that made the
    vectors, or None if unknown. settings: those that it was built with. facts: what to report about it besides its
    size: the recall measured when it was built.
    """

    def __init__(self, index: Any, doc_ids: DocIds, vectors: Any, about: Mapping[str, Any]) -> None:
        self._index, self.doc_ids, self._vectors, self._about = index, doc_ids, vectors, dict(about)
        self._lists = _lists(index)  # without vectors, faiss's scores are kept: to decode them takes a map of all lists
        self.kind, self.encoder, self.dimension = str(about["kind"]), about.get("encoder"), int(about["dimension"])
        self.settings, self.facts = dict(about["settings"]), dict(about.get("facts", {}))

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any] | Shards,
        doc_ids: Sequence[str] | DocIds,
        *,
        kind: str,
        settings: FaissSettings | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> FaissIndex:
        """Build the index of vectors [N,D]; what faiss learns from them, it learns from a sample.

        With several threads, a graph varies slightly between builds. Raises DrkitError as `FlatIndex.build` does, or if
        kind and settings do not suit the vectors, and MissingExtraError without faiss.
        """
        ids = DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        count, dimension = vectors.shape
        factory, default = faiss_kind(kind, count, dimension, half=vectors.dtype == np.float16)
        settings = _with_defaults(settings or FaissSettings(), default)
        index = _new_index(factory, settings, dimension, count)
        with _explain_faiss_errors(factory, settings):
            _train(index, vectors)
            for _, block in float32_blocks(vectors):
                index.add(block)
        about = {"kind": kind, "count": count, "dimension": dimension, "encoder": encoder}
        about["settings"] = {"factory": factory, **asdict(settings)}
        return cls(index, ids, vectors if settings.rescore == WITH_VECTORS else None, about)

    @classmethod
    def load(cls, folder: str | Path) -> FaissIndex:
        """Load a saved index, memory-mapped.

        Raises DrkitError if files are missing, broken or inconsistent.
        """
        path, faiss = Path(folder), faiss_library()
        about = read_index_file(path, files=(FAISS, IDS))
        with reading_index(path):
            index = faiss.read_index(str(path / FAISS), faiss.IO_FLAG_MMAP_IFC)
            has_vectors = about["settings"].get("rescore") == WITH_VECTORS
            vectors = np.load(path / VECTORS, mmap_mode="r", allow_pickle=False) if has_vectors else None
            made = cls(index, DocIds.read([path / IDS]), vectors, about)
        if {len(made), index.ntotal, len(made if vectors is None else vectors)} != {about.get("count")}:
            raise DrkitError(
                f"{len(made)} ids do not match {index.ntotal} codes and their vectors; rebuild it with `drkit index`",
                where=path,
            )
        return made

    def __len__(self) -> int:
        return len(self.doc_ids)

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """Return the `depth` documents found for each query f32[Q,D], or fewer if the search reaches fewer.

        Raises DrkitError if the queries have another dimension, or `depth` is less than 1.
        """
        return [Hits.at(self.doc_ids, *found) for found in self.rank(queries, depth)]

    def rank(self, queries: NDArray[np.float32], depth: int) -> Iterator[Found]:
        """Yield the positions and scores of what `search` returns, one query at a time; ties are in their order.

        Fewer than 10 hits are the first of 10, for which the recall is measured.
        """
        check_search(queries, depth, self.dimension)
        count = min(len(self), max(depth, _DEPTH) * int(self.settings.get("candidates", 1)))
        for start in range(0, len(queries), _BATCH):
            batch = np.ascontiguousarray(queries[start : start + _BATCH], dtype=np.float32)
            for query, scores, positions in zip(batch, *self._index.search(batch, count), strict=True):
                found = positions >= 0  # faiss pads with position -1
                yield self._best(query, positions[found], scores[found], depth)

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the products of each query f32[Q,D] with the stored vectors of its own documents; NaN for unknown ids.

        Raises DrkitError if the numbers of queries and lists differ.
        """
        return score_positions(queries, [self.doc_ids.find(names) for names in doc_ids], self._vectors_at)

    def save(self, folder: str | Path) -> Path:
        """Write index.faiss, ids.arrow, index.json and, if candidates are scored with them, vectors.npy; atomically."""
        with replacing_folder(Path(folder)) as temporary:
            faiss_library().write_index(self._index, str(temporary / FAISS))
            if self._vectors is not None:
                write_vectors(temporary / VECTORS, self._vectors)
            self.doc_ids.write(temporary / IDS)
            write_about(temporary, {**self._about, "facts": self.facts})
        return Path(folder)

    def _best(
        self, query: NDArray[np.float32], positions: NDArray[np.int64], scores: NDArray[np.float32], depth: int
    ) -> Found:
        if self._vectors is not None or not self._lists:
            positions = np.sort(positions)  # in the order of the file
            scores = dot_products(self._vectors_at(positions), query)
        best = np.lexsort((positions, -scores))[:depth]
        return positions[best], scores[best]

    def _vectors_at(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the vectors [n,D] at positions i64[n], or, if they are not stored, what their codes stand for."""
        if self._vectors is not None:
            return np.asarray(self._vectors[positions])
        if self._lists:  # where each vector is stored, computed once
            self._lists.make_direct_map()
        return np.asarray(self._index.reconstruct_batch(positions))


def _with_defaults(given: FaissSettings, default: FaissSettings) -> FaissSettings:
    """Return the given settings, with those of the kind where they are empty."""
    rescore = given.rescore or default.rescore
    candidates = given.candidates or (4 if rescore == WITH_VECTORS else default.candidates)
    return FaissSettings(",".join(filter(None, (default.parameters, given.parameters))), rescore, candidates)


def _new_index(factory: str, settings: FaissSettings, dimension: int, count: int | None) -> Any:
    """Return an empty index of faiss. Raises DrkitError for settings that do not suit the vectors [count,dimension]."""
    faiss = faiss_library()
    with _explain_faiss_errors(factory, settings):
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
        faiss.ParameterSpace().set_index_parameters(index, settings.parameters)
    lists = _lists(index)
    if lists and count is not None and lists.nlist > count:
        raise DrkitError(f"{factory}: {lists.nlist} lists are too many for {count} vectors")
    if settings.rescore == WITH_CODES and "FastScan" in type(lists).__name__:
        raise DrkitError(f"faiss cannot decode {factory}: score its hits with the vectors (rescore)")
    return index


def _train(index: Any, vectors: Any) -> None:
    """Train a new index on a sample of the vectors [N,D]: 64 for each list, and for each of a byte's 256 values."""
    lists = _lists(index)
    for learned in (lists, getattr(lists or index, "pq", None)):
        if learned:
            learned.cp.min_points_per_centroid = 1  # fewer give a warning for each
    size = _TRAIN_PER_LIST * max(256, lists.nlist if lists else 0)
    drawn = np.linspace(0, len(vectors) - 1, min(len(vectors), size, _TRAIN_MAX)).astype(np.int64)
    index.train(np.ascontiguousarray(vectors[drawn], dtype=np.float32))


def _lists(index: Any) -> Any:
    """Return the inverted lists of an index of faiss, which may be within others, or None."""
    faiss = faiss_library()
    found = faiss.try_extract_index_ivf(index)
    return found and faiss.downcast_index(found)


@contextmanager
def _explain_faiss_errors(factory: str, settings: FaissSettings) -> Iterator[None]:
    """Turn what faiss raises for settings that it does not know, or that do not suit the vectors, into a DrkitError."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"(?s).*? at \S+:\d+: (Error: '.*?' failed: )?", "", str(error)).strip()
        given = repr(factory) + (f" with {settings.parameters!r}" if settings.parameters else "")
        raise DrkitError(
            f"faiss cannot build an index of kind {given}: {reason or 'unsupported'}; use one of "
            f"{', '.join(_KIND_NAMES)}, or a factory string of faiss such as IVF1024,PQ32"
        ) from error
