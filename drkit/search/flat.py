"""A flat index: exact search by inner product, with the same result from every engine.

The float32 sums of an engine depend on how it blocks the matrix. So it returns a few more candidates than requested,
and these are scored again one by one: scores and order depend on the vectors alone, and ties are ordered by position.
Vectors that exceed the memory budget stay in their files and are read block by block.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pyarrow import ArrowException

from drkit.core.files import read_json, replacing_folder, write_text
from drkit.errors import DrkitError
from drkit.search.engines import ROWS, Engine, FaissEngine, make_engine
from drkit.search.retrieve import Hits, check_one_list_per_query
from drkit.search.vectors import DocIds, Shards, Vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
            _write_vectors(temporary / VECTORS, self.vectors)
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
        try:
            vectors = np.load(path / VECTORS, mmap_mode="r", allow_pickle=False)
            ids = DocIds.read([path / IDS])
            if _float32_bytes(vectors) > memory:
                vectors = Shards.read([path / VECTORS])
            index = cls(vectors, ids, make_engine(_converted(vectors, memory), engine), about.get("encoder"))
        except (OSError, ValueError, RuntimeError, ArrowException) as error:
            raise DrkitError(f"cannot read the index in {path}: {error}; rebuild it with `drkit index`") from error
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
    """Whether the last candidates may still tie with the one at rank `depth`."""
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


def _write_vectors(path: Path, vectors: Any) -> None:
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
