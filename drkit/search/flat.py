"""Flat indexes: exact search by inner product, with the same result from every engine (faiss or torch).

The float32 sums of an engine depend on how it blocks the matrix. So it returns a few more candidates than requested,
and these are scored again one by one: scores and order depend on the vectors alone, and ties are ordered by position.
Vectors that exceed the memory budget stay in their files and are read block by block.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pyarrow import ArrowException
from torch import Tensor

from drkit.core.files import read_json, replacing_folder, write_text
from drkit.errors import DrkitError, MissingExtraError
from drkit.search.rankings import Hits, check_one_list_per_query
from drkit.search.vectors import DocIds, Shards, Vectors, float32_blocks

VECTORS, IDS, FAISS, ABOUT = "vectors.npy", "ids.arrow", "index.faiss", "index.json"
MEMORY = 4 * 2**30
SPARE = 16
_PASS_BYTES = 2**28


class FlatIndex:
    """Vectors [N,D], float32 or float16, and their N document ids; for cosine similarity, pass vectors of length 1.

    Create one with `build`, `over` or `load`. engine: finds the candidates. encoder: the identity of the encoder that
    made the vectors (`TextEncoder.identity`), or None if unknown.
    """

    kind: ClassVar[str] = "flat"

    def __init__(self, vectors: Any, doc_ids: DocIds, engine: Engine, encoder: Mapping[str, Any] | None = None) -> None:
        self.vectors, self.engine, self.encoder = vectors, engine, encoder
        self._ids = doc_ids

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any] | Shards,
        doc_ids: Sequence[str] | DocIds,
        *,
        engine: str = "auto",
        encoder: Mapping[str, Any] | None = None,
    ) -> FlatIndex:
        """Build an index of vectors [N,D] (an array, possibly memory-mapped, or `Shards`); engine: auto, faiss, torch.

        Raises DrkitError for no vectors, a different number of ids, a duplicate id, or a value that is not finite.
        """
        ids = DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        return cls(vectors, ids, make_engine(_converted(vectors), engine), encoder)

    @classmethod
    def over(cls, vectors: Vectors) -> FlatIndex:
        """Build an index over an opened folder of vectors. Raises DrkitError as `build` does."""
        return cls.build(vectors.shards, vectors.doc_ids, encoder=vectors.encoder)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return int(self.vectors.shape[1])

    @property
    def settings(self) -> dict[str, Any]:
        """No settings: the index is exact."""
        return {}

    @property
    def facts(self) -> dict[str, Any]:
        """What to report about the index besides its size: the engine."""
        return {"engine": type(self.engine).__name__}

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """Return the best `depth` documents (all, if there are fewer) of each query f32[Q,D].

        Raises DrkitError if the queries have another dimension, or `depth` is less than 1.
        """
        return list(self.stream(queries, depth))

    def stream(self, queries: NDArray[np.float32], depth: int) -> Iterator[Hits]:
        """Yield what `search` returns, one query at a time.

        Each pass over the vectors serves as many queries as fit 256 MB of candidates (about 8,000 at depth 1000).
        """
        check_search(queries, depth, self.dimension)
        size = _queries_per_pass(min(len(self), depth + SPARE))
        for start in range(0, len(queries), size):
            part = queries[start : start + size]
            for query, positions in zip(part, self._candidates(part, depth), strict=True):
                scores = products(self.vectors[positions], query)
                best = np.lexsort((positions, -scores))[:depth]
                yield Hits(tuple(self._ids.take(positions[best])), tuple(scores[best].tolist()))

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the exact inner products of each query f32[Q,D] with its own documents; NaN for an unknown id.

        Raises DrkitError if the numbers of queries and lists differ.
        """
        return score_positions(queries, [self._ids.find(names) for names in doc_ids], self.vectors.__getitem__)

    def save(self, folder: str | Path) -> Path:
        """Write vectors.npy, ids.arrow, index.json and, within the memory budget, faiss's index.faiss; atomically."""
        with replacing_folder(Path(folder), ABOUT) as temporary:
            write_vectors(temporary / VECTORS, self.vectors)
            self._ids.write(temporary / IDS)
            if isinstance(self.engine, FaissEngine) and _float32_bytes(self.vectors) <= MEMORY:
                self.engine.write(temporary / FAISS)
            about = {"kind": self.kind, "count": len(self), "dimension": self.dimension}
            write_about(temporary, {**about, "dtype": str(np.dtype(self.vectors.dtype)), "encoder": self.encoder})
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path, *, engine: str = "auto", memory: int = MEMORY) -> FlatIndex:
        """Load a saved index; its vectors stay on disk, memory-mapped.

        memory: bytes; vectors that need more as float32 are read block by block in each search, and never kept.

        Raises DrkitError if a file is missing, cannot be read, or does not match the others.
        """
        path = Path(folder)
        about = read_about(path, cls.kind, (VECTORS, IDS))
        with reading_index(path):
            vectors = np.load(path / VECTORS, mmap_mode="r", allow_pickle=False)
            ids = DocIds.read([path / IDS])
            if _float32_bytes(vectors) > memory:
                vectors = Shards.read([path / VECTORS])
            index = cls(vectors, ids, make_engine(_converted(vectors, memory), engine), about.get("encoder"))
        if vectors.shape != (about.get("count"), about.get("dimension")) or len(ids) != len(vectors):
            raise DrkitError(
                f"{path}: {len(ids)} ids do not match vectors of shape {vectors.shape}; rebuild it with `drkit index`"
            )
        return index

    def _candidates(self, queries: NDArray[np.float32], depth: int) -> list[NDArray[np.int64]]:
        """Return for each query positions i64[M] that certainly contain the best `depth`: the last ones score lower."""
        count = min(len(self), depth + SPARE)
        scores, positions = self.engine.top(queries, count)
        found = list(positions)
        unsure = [i for i in range(len(queries)) if _tied(scores[i], depth)]
        while unsure and count < len(self):
            count, still_tied = min(len(self), 4 * count), []
            size = _queries_per_pass(count)
            for some in (unsure[start : start + size] for start in range(0, len(unsure), size)):
                for i, wider_scores, wider in zip(some, *self.engine.top(queries[some], count), strict=True):
                    found[i] = wider
                    still_tied += [i] if _tied(wider_scores, depth) else []
            unsure = still_tied
        return [row[row >= 0] for row in found]


def products(rows: NDArray[Any], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inner products f32[M] of rows [M,D] and one query f32[D], each summed by itself in float64."""
    sums: NDArray[np.float64] = np.vecdot(rows, query, dtype=np.float64)
    return sums.astype(np.float32)


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
            row[own >= 0] = products(vectors_at(own[own >= 0]), query)
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
    for start in range(0, len(vectors), ROWS):
        wrong = np.flatnonzero(~np.isfinite(vectors[start : start + ROWS]).all(axis=1))
        if len(wrong):
            name = doc_ids[start + int(wrong[0])]
            raise DrkitError(
                f"the vector of {name!r} is not finite; training may have diverged: try a lower learning rate"
            )


def _tied(scores: NDArray[np.float32], depth: int) -> bool:
    """Return whether the last candidates may still tie with the one at rank `depth`."""
    return depth < len(scores) and bool(scores[depth - 1] - scores[-1] <= 1e-6 * abs(scores[0]))


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
        for start in range(0, len(vectors), ROWS):
            file.write(np.ascontiguousarray(vectors[start : start + ROWS]).data)


def write_about(folder: Path, about: Mapping[str, Any]) -> None:
    """Write index.json: kind, count, dimension, encoder identity; settings and recall of an approximate index."""
    content = {"format": 1, "metric": "inner_product", **about}
    write_text(folder / ABOUT, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_about(folder: Path, kind: str | None = None, files: tuple[str, ...] = (IDS,)) -> dict[str, Any]:
    """Read index.json; kind: the expected kind of index, or None for any.

    Raises DrkitError if it or one of `files` is missing or broken, or it describes another kind.
    """
    missing = [name for name in (*files, ABOUT) if not (folder / name).is_file()]
    if (folder / ABOUT).is_file():
        about = read_json(folder / ABOUT, "rebuild the index with `drkit index`")
        if not isinstance(about, dict):
            raise DrkitError(f"{folder / ABOUT} does not describe an index; rebuild it with `drkit index`")
        found = about.get("kind", "flat")
        if kind and found != kind:
            raise DrkitError(f"{folder} holds an index of kind {found!r}, not {kind!r}; open_index opens any kind")
        if not missing:
            return about
    raise DrkitError(f"{folder} is not an index (missing {', '.join(missing)}); rebuild it with `drkit index`")


@contextmanager
def reading_index(folder: Path) -> Iterator[None]:
    """Turn what libraries raise for broken files of an index into a DrkitError."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, ArrowException) as error:
        raise DrkitError(f"cannot read the index in {folder}: {error}; rebuild it with `drkit index`") from error


def read_mapped(file: Path) -> Any:
    """Read an index in faiss's format, memory-mapped."""
    faiss = faiss_library()
    return faiss.read_index(str(file), getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP))


def write_faiss(index: Any, file: Path) -> None:
    """Write an index in faiss's format."""
    faiss_library().write_index(index, str(file))


def faiss_library() -> Any:
    """Return the module `faiss`. Raises MissingExtraError if it is not installed."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("an approximate index", "faiss", "cpu") from None
    return faiss


ENGINES = ("auto", "faiss", "torch")
ROWS = 65_536
_SCORES_AT_ONCE = 2**24
_FAISS_GPU_MAX = 2048


class Engine(Protocol):
    """Finds the vectors with the largest inner products: reads them block by block and keeps the best so far."""

    name: str

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores f32[Q,count], best first, and positions i64[Q,count] (-1: none) for queries f32[Q,D]."""


class FaissEngine:
    """Brute-force search by faiss over vectors [N,D], an array or `Shards`; on a GPU if faiss supports one."""

    name = "faiss"

    def __init__(self, vectors: Any) -> None:
        import faiss

        self._vectors = vectors
        # The CPU build has no GPU resources. The GPU build returns at most 2048 neighbours.
        self._gpu: Any = faiss.StandardGpuResources() if _faiss_gpus() else None

    def write(self, file: Path) -> None:
        """Write an `IndexFlatIP` of the vectors in faiss's format; holds all of them in memory."""
        index = faiss_library().IndexFlatIP(self._vectors.shape[1])
        for _, block in float32_blocks(self._vectors):
            index.add(block)
        write_faiss(index, file)

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the top hits; see `Engine.top`."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        best = TopCandidates(len(queries), count)
        for start, block in float32_blocks(self._vectors):
            scores, positions = self._search(queries, block, min(count, len(block)))
            best.add(torch.from_numpy(scores), torch.from_numpy(positions) + start)
        return best.arrays()

    def _search(self, queries: NDArray[np.float32], block: NDArray[np.float32], count: int) -> Any:
        import faiss

        if self._gpu is not None and count <= _FAISS_GPU_MAX:
            return faiss.knn_gpu(self._gpu, queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)
        return faiss.knn(queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)


class TorchEngine:
    """Matrix products over vectors [N,D], an array or `Shards`, 65,536 rows at a time.

    device: `cpu`, `cuda`, or None for a GPU if available. Vectors in memory are copied to a GPU once and kept there.
    """

    name = "torch"

    def __init__(self, vectors: Any, device: str | None = None) -> None:
        self._vectors = vectors
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._on_gpu: list[tuple[int, Tensor]] = []

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the top hits; see `Engine.top`."""
        on_device = torch.from_numpy(np.array(queries, dtype=np.float32)).to(self._device)
        best = TopCandidates(len(on_device), count)
        with full_float32():
            for start, rows in self._rows():
                best.add(*_products(on_device, rows, min(count, len(rows)), start))
        return best.arrays()

    def _rows(self) -> Iterator[tuple[int, Tensor]]:
        if self._device.type == "cpu" or isinstance(self._vectors, Shards):
            return self._read()
        if not self._on_gpu:
            self._on_gpu = list(self._read())
        return iter(self._on_gpu)

    def _read(self) -> Iterator[tuple[int, Tensor]]:
        for start, block in float32_blocks(self._vectors):
            for offset in range(0, len(block), ROWS):
                # a copy: torch does not accept read-only memory
                yield start + offset, torch.from_numpy(np.array(block[offset : offset + ROWS])).to(self._device)


def _products(queries: Tensor, rows: Tensor, count: int, start: int) -> tuple[Tensor, Tensor]:
    """Return the best `count` rows of each query, with as many queries at once as fit 64 MB of scores."""
    size = max(1, _SCORES_AT_ONCE // len(rows))
    parts = [torch.topk(queries[i : i + size] @ rows.T, count, dim=1) for i in range(0, len(queries), size)]
    scores = torch.cat([part.values for part in parts])
    return scores, torch.cat([part.indices for part in parts]) + start


class TopCandidates:
    """The best `count` candidates of each query so far, updated block by block."""

    def __init__(self, queries: int, count: int) -> None:
        self._count = count
        self._scores = torch.empty(queries, 0)
        self._positions = torch.empty(queries, 0, dtype=torch.long)

    def add(self, scores: Tensor, positions: Tensor) -> None:
        """Add the candidates of one block: scores f32[Q,n], best first, and positions i64[Q,n]."""
        if not self._scores.shape[1]:
            self._scores, self._positions = scores, positions
            return
        scores, positions = torch.cat([self._scores, scores], 1), torch.cat([self._positions, positions], 1)
        self._scores, kept = torch.topk(scores, min(self._count, scores.shape[1]), dim=1)
        self._positions = positions.gather(1, kept)

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores f32[Q,<=count], best first, and positions i64[Q,<=count]."""
        return self._scores.cpu().numpy(), self._positions.cpu().numpy()


def make_engine(vectors: Any, name: str = "auto") -> Engine:
    """Return the engine named `faiss` or `torch`; `auto`: whichever can use a GPU, else faiss, else torch.

    Raises DrkitError for any other name.
    """
    if name not in ENGINES:
        raise DrkitError(f"unknown search engine {name!r}; use one of: {', '.join(ENGINES)}")
    if name == "auto":
        only_torch_on_gpu = torch.cuda.is_available() and not _faiss_gpus()
        name = "torch" if only_torch_on_gpu or not _has_faiss() else "faiss"
    return FaissEngine(vectors) if name == "faiss" else TorchEngine(vectors)


@contextmanager
def full_float32() -> Iterator[None]:
    """Compute matrix products in full float32 precision, even if the program allows less elsewhere."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _faiss_gpus() -> int:
    try:
        import faiss
    except ImportError:
        return 0
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


@cache
def _has_faiss() -> bool:
    try:
        import faiss  # noqa: F401
    except ImportError:
        logging.getLogger("drkit.search").warning(
            "faiss is not installed: exact search uses torch, with the same results; "
            "pip install 'drkit[cpu]' makes it faster"
        )
        return False
    return True
