"""Flat indexes: exact search by inner product.

The float32 sums of a matrix product depend on how it is blocked, and are off by up to a bound that the lengths of the
vectors give. So more candidates are taken than requested, until no other vector can score as high, and these are scored
again one by one: scores and order depend on the vectors alone, ties are ordered by position, and the first hits are
the same whatever the depth.
Vectors that exceed the memory budget stay in their files and are read block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drkit.core.checksums import check_unchanged
from drkit.core.files import read_json, replacing_folder, write_json
from drkit.errors import DrkitError, import_extra
from drkit.search.rankings import Found, Hits, check_one_list_per_query
from drkit.search.vectors import DocIds, Shards, Vectors, float32_blocks

VECTORS, IDS, FAISS, INDEX_FILE = "vectors.npy", "ids.arrow", "index.faiss", "index.json"
MEMORY = 4 * 2**30
SPARE = 16
_PASS_BYTES = 2**28


class FlatIndex:
    """Vectors [N,D], float32 or float16, and their N document ids; for cosine similarity, pass vectors of length 1.

    Create one with `build`, `over` or `load`. candidates: finds them by matrix products. encoder: the identity of the
    encoder that made the vectors (`TextEncoder.identity`), or None if unknown. It has no settings, and no facts to
    report besides its size.
    """

    kind: ClassVar[str] = "flat"
    settings: ClassVar[Mapping[str, Any]] = {}
    facts: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self, vectors: Any, doc_ids: DocIds, candidates: Candidates, encoder: Mapping[str, Any] | None = None
    ) -> None:
        self.vectors, self.encoder = vectors, encoder
        self.doc_ids, self._from = doc_ids, candidates

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any] | Shards,
        doc_ids: Sequence[str] | DocIds,
        *,
        encoder: Mapping[str, Any] | None = None,
    ) -> FlatIndex:
        """Build an index of vectors [N,D]: an array, possibly memory-mapped, or `Shards`.

        Raises DrkitError for no vectors, a different number of ids, a duplicate id, or a value that is not finite.
        """
        ids = DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        return cls(vectors, ids, Candidates(_converted(vectors)), encoder)

    @classmethod
    def over(cls, vectors: Vectors) -> FlatIndex:
        """Build an index over an opened folder of vectors. Raises DrkitError as `build` does."""
        return cls.build(vectors.shards, vectors.doc_ids, encoder=vectors.encoder)

    def within(self, positions: range) -> FlatIndex:
        """Return an index of the vectors at a range of positions, which are not copied."""
        is_sharded = isinstance(self.vectors, Shards)
        own = self.vectors.within(positions) if is_sharded else self.vectors[positions.start : positions.stop]
        return FlatIndex(own, self.doc_ids.within(positions), Candidates(_converted(own)), self.encoder)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return int(self.vectors.shape[1])

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """Return the best `depth` documents (all, if there are fewer) of each query f32[Q,D].

        Raises DrkitError if the queries have another dimension, or `depth` is less than 1.
        """
        return [Hits.at(self.doc_ids, *found) for found in self.rank(queries, depth)]

    def rank(self, queries: NDArray[np.float32], depth: int) -> Iterator[Found]:
        """Yield the positions and scores of what `search` returns, one query at a time.

        Each pass over the vectors serves as many queries as fit 256 MB of candidates (about 8,000 at depth 1000).
        """
        check_search(queries, depth, self.dimension)
        size = _queries_per_pass(min(len(self), depth + SPARE))
        for start in range(0, len(queries), size):
            batch = queries[start : start + size]
            for query, positions in zip(batch, self._candidates(batch, depth), strict=True):
                scores = dot_products(rows_at(self.vectors, positions), query)
                best = np.lexsort((positions, -scores))[:depth]
                yield positions[best], scores[best]

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the exact inner products of each query f32[Q,D] with its own documents; NaN for an unknown id.

        Raises DrkitError if the numbers of queries and lists differ.
        """
        return score_positions(queries, [self.doc_ids.find(names) for names in doc_ids], self.vectors.__getitem__)

    def save(self, folder: str | Path) -> Path:
        """Write vectors.npy, ids.arrow and index.json, atomically."""
        with replacing_folder(Path(folder)) as temporary:
            write_vectors(temporary / VECTORS, self.vectors)
            self.doc_ids.write(temporary / IDS)
            about = {"kind": self.kind, "count": len(self), "dimension": self.dimension}
            write_about(temporary, {**about, "dtype": str(np.dtype(self.vectors.dtype)), "encoder": self.encoder})
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path, *, memory: int = MEMORY) -> FlatIndex:
        """Load a saved index; its vectors stay on disk, memory-mapped.

        memory: bytes; vectors that need more as float32 are read block by block in each search, and never kept.

        Raises DrkitError if a file is missing, cannot be read, or does not match the others.
        """
        path = Path(folder)
        about = read_index_file(path, cls.kind, (VECTORS, IDS))
        with reading_index(path):
            # "c" maps like "r", but in a form that torch accepts without a copy. Nothing is written.
            vectors = np.load(path / VECTORS, mmap_mode="c", allow_pickle=False)
            ids = DocIds.read([path / IDS])
            if _float32_bytes(vectors) > memory:
                vectors = Shards.read([path / VECTORS])
            index = cls(vectors, ids, Candidates(_converted(vectors, memory)), about.get("encoder"))
        if vectors.shape != (about.get("count"), about.get("dimension")) or len(ids) != len(vectors):
            raise DrkitError(
                f"{len(ids)} ids do not match vectors of shape {vectors.shape}; rebuild it with `drkit index`",
                where=path,
            )
        return index

    def _candidates(self, queries: NDArray[np.float32], depth: int) -> list[NDArray[np.int64]]:
        """Return for each query positions i64[M] that certainly contain the best `depth`: the last ones score lower."""
        count = min(len(self), depth + SPARE)
        scores, positions = self._from.top(queries, count)
        found, errors = list(positions), self._errors(queries)
        unsure = [i for i in range(len(queries)) if _may_miss(scores[i], depth, errors[i])]
        while unsure and count < len(self):
            count, still_unsure = min(len(self), 4 * count), []
            size = _queries_per_pass(count)
            for some in (unsure[start : start + size] for start in range(0, len(unsure), size)):
                for i, wider_scores, wider in zip(some, *self._from.top(queries[some], count), strict=True):
                    found[i] = wider
                    still_unsure += [i] if _may_miss(wider_scores, depth, errors[i]) else []
            unsure = still_unsure
        return found

    def _errors(self, queries: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return how far the float32 product of each query with any vector may be from the exact one, f64[Q].

        A sum of D products, in any order, is off by at most D roundings of |q| |x| (Higham 2002, section 3.1); two more
        are for the rounding of the exact scores.
        """
        lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
        bounds: NDArray[np.float64] = (self.dimension + 2) * 2.0**-24 * self._from.longest * lengths
        return bounds


def dot_products(rows: NDArray[Any], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inner products f32[M] of rows [M,D] and one query f32[D], each summed by itself in float64."""
    sums: NDArray[np.float64] = np.vecdot(rows, query, dtype=np.float64)
    return sums.astype(np.float32)


def rows_at(vectors: Any, positions: NDArray[np.int64]) -> NDArray[Any]:
    """Return the rows [n,D] of vectors [N,D] at positions i64[n]; of an array, `take` copies them twice as fast."""
    rows: NDArray[Any] = vectors[positions] if isinstance(vectors, Shards) else vectors.take(positions, axis=0)
    return rows


def score_positions(
    queries: NDArray[np.float32],
    positions: Sequence[NDArray[np.int64]],
    vectors_at: Callable[[NDArray[np.int64]], NDArray[Any]],
) -> list[list[float]]:
    """Score each query f32[Q,D] against the vectors at its own positions i64[n] (-1: NaN).

    vectors_at: returns the vectors [n,D] at positions i64[n]. Raises DrkitError if the numbers of queries and lists
    differ.
    """
    check_one_list_per_query(len(positions), len(queries))
    scores = [np.full(len(own), np.nan, dtype=np.float32) for own in positions]
    for row, own, query in zip(scores, positions, queries, strict=True):
        if (own >= 0).any():
            row[own >= 0] = dot_products(vectors_at(own[own >= 0]), query)
    return [[float(score) for score in row] for row in scores]


def check_search(queries: NDArray[np.float32], depth: int, dimension: int) -> None:
    """Raise DrkitError if the queries have another dimension, or `depth` is less than 1."""
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise DrkitError(
            f"expected queries of shape [Q, {dimension}], got {queries.shape}; "
            f"search with the encoder that the index was built with"
        )
    if depth < 1:
        raise DrkitError(f"depth must be at least 1, got {depth}")


def check_vectors(vectors: Any, doc_ids: DocIds) -> None:
    """Raise DrkitError for no vectors, a different number of ids, a duplicate id, or a value that is not finite."""
    if vectors.ndim != 2 or not len(vectors):
        raise DrkitError(f"an index needs vectors of shape [N, D] with N > 0, got {vectors.shape}")
    if len(doc_ids) != len(vectors):
        raise DrkitError(f"got {len(doc_ids)} document ids for {len(vectors)} vectors; every vector needs one id")
    doc_ids.check_unique()
    for start in range(0, len(vectors), _ROWS):
        wrong = np.flatnonzero(~np.isfinite(vectors[start : start + _ROWS]).all(axis=1))
        if len(wrong):
            name = doc_ids[start + int(wrong[0])]
            raise DrkitError(
                f"the vector of {name!r} is not finite; training may have diverged: try a lower learning rate"
            )


def _may_miss(scores: NDArray[np.float32], depth: int, error: float) -> bool:
    """Return whether a vector below the last candidate may score as high as the one at rank `depth`."""
    return depth < len(scores) and float(scores[depth - 1]) - float(scores[-1]) <= 2 * error


def _queries_per_pass(count: int) -> int:
    """Queries whose candidates (scores, positions, and those they are merged with) fit 256 MB."""
    return max(1, _PASS_BYTES // (24 * count))


def _float32_bytes(vectors: Any) -> int:
    return 4 * int(np.prod(vectors.shape))


def _converted(vectors: Any, memory: int = MEMORY) -> Any:
    """Convert small float16 vectors to float32 once, instead of in every search."""
    small = not isinstance(vectors, Shards) and _float32_bytes(vectors) <= memory
    return np.asarray(vectors, dtype=np.float32) if small and vectors.dtype != np.float32 else vectors


def write_vectors(path: Path, vectors: Any) -> None:
    """Write one .npy file block by block."""
    with path.open("wb") as file:
        head = {"descr": np.dtype(vectors.dtype).str, "fortran_order": False, "shape": tuple(vectors.shape)}
        np.lib.format.write_array_header_1_0(file, head)
        for start in range(0, len(vectors), _ROWS):
            file.write(np.ascontiguousarray(vectors[start : start + _ROWS]).data)


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write index.json: kind, count, dimension, encoder identity; settings and recall of an approximate index."""
    write_json(folder / INDEX_FILE, {"format": 1, "metric": "inner_product", **about})


def read_index_file(folder: Path, kind: str | None = None, files: tuple[str, ...] = (IDS,)) -> dict[str, Any]:
    """Read index.json; kind: the expected kind of index, or None for any.

    Raises DrkitError if it or one of `files` is missing or broken, it describes another kind, or a file of the index
    has changed since it was written.
    """
    missing = [name for name in (*files, INDEX_FILE) if not (folder / name).is_file()]
    if (folder / INDEX_FILE).is_file():
        about = read_json(folder / INDEX_FILE, "rebuild the index with `drkit index`")
        if not isinstance(about, dict):
            raise DrkitError(f"{folder / INDEX_FILE} does not describe an index; rebuild it with `drkit index`")
        found = about.get("kind", "flat")
        if kind and found != kind:
            raise DrkitError(f"{folder} holds an index of kind {found!r}, not {kind!r}; open_index opens any kind")
        if not missing:
            check_unchanged(folder, "rebuild it with `drkit index`")
            return about
    raise DrkitError(f"{folder} is not an index (missing {', '.join(missing)}); rebuild it with `drkit index`")


@contextmanager
def reading_index(folder: Path) -> Iterator[None]:
    """Turn what libraries raise for broken files of an index into a DrkitError."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, TypeError, LookupError, MemoryError) as error:
        raise DrkitError(f"cannot read the index in {folder}: {error}; rebuild it with `drkit index`") from error


def faiss_library() -> Any:
    """Return the module `faiss`. Raises as `import_extra` does."""
    return import_extra("faiss", "an approximate index")


_ROWS = 65_536
_SCORES_AT_ONCE = 2**24


class Candidates:
    """Finds the vectors with the largest inner products, by matrix products over 65,536 rows at a time.

    vectors [N,D]: an array or `Shards`. A GPU is used if available; vectors in memory are copied to it once and kept.
    """

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._on_gpu: list[tuple[int, Tensor]] = []

    @cached_property
    def longest(self) -> float:
        """The length of the longest vector, rounded up; the first use reads all vectors."""
        lengths = [float(torch.linalg.vector_norm(rows, dim=1).max()) for _, rows in self._rows()]
        return 1.0001 * max(lengths)

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores f32[Q,count], best first, and positions i64[Q,count] for queries f32[Q,D]."""
        on_device = torch.from_numpy(np.array(queries, dtype=np.float32)).to(self._device)
        scores, positions = torch.empty(len(on_device), 0), torch.empty(len(on_device), 0, dtype=torch.long)
        with full_float32():
            for start, rows in self._rows():
                found, at = _products(on_device, rows, min(count, len(rows)), start)
                found, at = torch.cat([scores.to(found), found], 1), torch.cat([positions.to(at), at], 1)
                scores, kept = torch.topk(found, min(count, found.shape[1]), dim=1)
                positions = at.gather(1, kept)
        return scores.cpu().numpy(), positions.cpu().numpy()

    def _rows(self) -> Iterator[tuple[int, Tensor]]:
        if self._device.type == "cpu" or isinstance(self._vectors, Shards):
            return self._read()
        if not self._on_gpu:
            self._on_gpu = list(self._read())
        return iter(self._on_gpu)

    def _read(self) -> Iterator[tuple[int, Tensor]]:
        for start, block in float32_blocks(self._vectors):
            for offset in range(0, len(block), _ROWS):
                rows = block[offset : offset + _ROWS]
                # torch does not accept read-only memory
                own = torch.from_numpy(rows if rows.flags.writeable else rows.copy())
                yield start + offset, own.to(self._device)


def _products(queries: Tensor, rows: Tensor, count: int, start: int) -> tuple[Tensor, Tensor]:
    """Return the best `count` rows of each query, with as many queries at once as fit 64 MB of scores."""
    size = max(1, _SCORES_AT_ONCE // len(rows))
    best = [torch.topk(queries[i : i + size] @ rows.T, count, dim=1) for i in range(0, len(queries), size)]
    scores = torch.cat([one.values for one in best])
    return scores, torch.cat([one.indices for one in best]) + start


@contextmanager
def full_float32() -> Iterator[None]:
    """Compute matrix products in full float32 precision, even if the program allows less elsewhere."""
    # By backend: torch cannot read the common setting after transformers' argument tf32 was set.
    backends: Any = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    for backend in backends:
        backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
