"""A flat index: exact search by inner product, the same answer whichever engine finds the candidates.

An engine's float32 sums depend on how it blocks the matrix. So it is asked for a few more candidates than wanted,
and these are scored anew, each by itself: scores and order depend on the vectors alone, ties stand by place.
Vectors that would take more than the memory budget stay in their files and are gone through block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pyarrow import ArrowException

from drkit.core.files import replacing_folder
from drkit.errors import DrkitError
from drkit.search.exact import ROWS, Engine, FaissEngine, make_engine
from drkit.search.hits import Hits
from drkit.search.ids import DocIds
from drkit.search.index_files import ABOUT, FAISS, IDS, VECTORS, read_about, write_about
from drkit.search.shards import Shards

if TYPE_CHECKING:
    from numpy.typing import NDArray

SPARE = 16
MEMORY = 4 * 2**30
_PASS_BYTES = 2**28


class FlatIndex:
    """Vectors [N,D], float32 or float16, and their N document ids. Under cosine similarity, give vectors of length 1.

    Made by `build` or `load`. engine: what finds candidates. encoder: what made the vectors, as
    `TextEncoder.identity` tells it, or None.
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
        """An index of vectors [N,D]: an array, also a memory-mapped one, or `Shards`; engine: auto, faiss or torch.

        Raises DrkitError for no vectors, another number of ids, a repeated id, or a value that is not finite.
        """
        ids = DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        return cls(vectors, ids, make_engine(_fit(vectors), engine), encoder)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return int(self.vectors.shape[1])

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth telling of it beside its size."""
        return {"engine": type(self.engine).__name__}

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """The best `depth` documents (all where there are fewer) of each query f32[Q,D].

        Raises DrkitError where the queries have another dimension, or `depth` is no positive number.
        """
        return list(self.stream(queries, depth))

    def stream(self, queries: NDArray[np.float32], depth: int) -> Iterator[Hits]:
        """`search`, the hits of one query at a time.

        The vectors are gone through once for as many queries as have room for their candidates in 256 MB (some
        8,000 at depth 1000).
        """
        check_search(queries, depth, self.dimension)
        size = _at_once(min(len(self), depth + SPARE))
        for start in range(0, len(queries), size):
            part = queries[start : start + size]
            for query, places in zip(part, self._candidates(part, depth), strict=True):
                yield self._exact(query, places, depth)

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """The exact inner products of each query f32[Q,D] with documents of its own; NaN for an id that is not here.

        Raises DrkitError where there are more or fewer lists of ids than queries.
        """
        return score_places(queries, [self._ids.find(names) for names in doc_ids], self.vectors.__getitem__)

    def save(self, folder: str | Path) -> Path:
        """Write vectors.npy, ids.arrow, index.json and, within the memory budget, faiss's index.faiss; atomically."""
        with replacing_folder(Path(folder), ABOUT) as temporary:
            _write_vectors(temporary / VECTORS, self.vectors)
            self._ids.write(temporary / IDS)
            if isinstance(self.engine, FaissEngine) and _bytes(self.vectors) <= MEMORY:
                self.engine.write(temporary / FAISS)
            about = {"kind": self.kind, "count": len(self), "dimension": self.dimension}
            write_about(temporary, {**about, "dtype": str(np.dtype(self.vectors.dtype)), "encoder": self.encoder})
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path, *, engine: str = "auto", memory: int = MEMORY) -> FlatIndex:
        """The index that `save` wrote; its vectors stay on disk, memory-mapped.

        memory: bytes; where the vectors take more as float32, a search reads them block by block and holds none.

        Raises DrkitError where a file is missing, cannot be read or does not fit the others.
        """
        place = Path(folder)
        about = read_about(place, cls.kind, (VECTORS, IDS))
        try:
            vectors = np.load(place / VECTORS, mmap_mode="r", allow_pickle=False)
            ids = DocIds.read([place / IDS])
            if _bytes(vectors) > memory:
                vectors = Shards.read([place / VECTORS])
            index = cls(vectors, ids, make_engine(_fit(vectors, memory), engine), about.get("encoder"))
        except (OSError, ValueError, RuntimeError, ArrowException) as error:
            raise DrkitError(f"cannot read the index in {place}: {error}; build it again") from error
        if vectors.shape != (about.get("count"), about.get("dimension")) or len(ids) != len(vectors):
            raise DrkitError(f"{place}: {len(ids)} ids and vectors of shape {vectors.shape}; build the index again")
        return index

    def _candidates(self, queries: NDArray[np.float32], depth: int) -> list[NDArray[np.int64]]:
        """For each query, places i64[M] among which the best `depth` are for sure: the last scores below them."""
        count = min(len(self), depth + SPARE)
        scores, places = self.engine.top(queries, count)
        found = list(places)
        unsure = [at for at in range(len(queries)) if _tied(scores[at], depth)]
        while unsure and count < len(self):
            count, left = min(len(self), 4 * count), []
            size = _at_once(count)
            for some in (unsure[start : start + size] for start in range(0, len(unsure), size)):
                for at, wider, there in zip(some, *self.engine.top(queries[some], count), strict=True):
                    found[at] = there
                    left += [at] if _tied(wider, depth) else []
            unsure = left
        return [places[places >= 0] for places in found]

    def _exact(self, query: NDArray[np.float32], places: NDArray[np.int64], depth: int) -> Hits:
        scores = products(self.vectors[places], query)
        best = np.lexsort((places, -scores))[:depth]
        return Hits(tuple(self._ids.take(places[best])), tuple(scores[best].tolist()))


def products(rows: NDArray[Any], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """f32[M]: inner products of rows [M,D] and one query f32[D], each by itself, summed in float64."""
    sums: NDArray[np.float64] = (rows.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return sums.astype(np.float32)


def score_places(
    queries: NDArray[np.float32],
    places: Sequence[NDArray[np.int64]],
    take: Callable[[NDArray[np.int64]], NDArray[Any]],
) -> list[list[float]]:
    """Products of each query f32[Q,D] with the vectors at its own places i64[n], -1: NaN; take: places to [n,D].

    Raises DrkitError where there are more or fewer lists than queries.
    """
    if len(queries) != len(places):
        raise DrkitError(f"{len(places)} lists of documents for {len(queries)} queries; give each query its own")
    scores = [np.full(len(of), np.nan, dtype=np.float32) for of in places]
    for row, of, query in zip(scores, places, queries, strict=True):
        if (of >= 0).any():
            row[of >= 0] = products(take(of[of >= 0]), query)
    return [[float(score) for score in row] for row in scores]


def check_search(queries: NDArray[np.float32], depth: int, dimension: int) -> None:
    """Raises DrkitError where the queries have another dimension, or `depth` is no positive number."""
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise DrkitError(
            f"queries of shape {queries.shape} in an index of vectors of {dimension}; "
            f"search with the encoder that the index was built with"
        )
    if depth < 1:
        raise DrkitError(f"depth {depth}; ask for at least one passage")


def check_vectors(vectors: Any, doc_ids: DocIds) -> None:
    """Raises DrkitError for no vectors, another number of ids, a repeated id, or a value that is not finite."""
    if vectors.ndim != 2 or not len(vectors):
        raise DrkitError(f"an index needs vectors of shape [N, D] with N > 0, got {vectors.shape}")
    if len(doc_ids) != len(vectors):
        raise DrkitError(f"{len(doc_ids)} document ids for {len(vectors)} vectors; every vector takes one id")
    doc_ids.check_unique()
    for start in range(0, len(vectors), ROWS):
        wrong = np.flatnonzero(~np.isfinite(vectors[start : start + ROWS]).all(axis=1))
        if len(wrong):
            name = doc_ids[start + int(wrong[0])]
            raise DrkitError(f"the vector of {name!r} is not finite; training may have diverged: lower its rate")


def _tied(scores: NDArray[np.float32], depth: int) -> bool:
    """Whether the candidates end before they are clearly worse than the last one wanted."""
    return depth < len(scores) and bool(scores[depth - 1] - scores[-1] <= 1e-6 * abs(scores[0]))


def _at_once(count: int) -> int:
    """Queries whose candidates, scores and places and those that they are merged with, have room in 256 MB."""
    return max(1, _PASS_BYTES // (24 * count))


def _bytes(vectors: Any) -> int:
    return 4 * int(np.prod(vectors.shape))


def _fit(vectors: Any, memory: int = MEMORY) -> Any:
    """What an engine goes through: small float16 vectors are made float32 once, not at every search."""
    small = not isinstance(vectors, Shards) and _bytes(vectors) <= memory
    return np.asarray(vectors, dtype=np.float32) if small and vectors.dtype != np.float32 else vectors


def _write_vectors(path: Path, vectors: Any) -> None:
    """One .npy file, written block by block."""
    with path.open("wb") as file:
        head = {"descr": np.dtype(vectors.dtype).str, "fortran_order": False, "shape": tuple(vectors.shape)}
        np.lib.format.write_array_header_1_0(file, head)
        for start in range(0, len(vectors), ROWS):
            file.write(np.ascontiguousarray(vectors[start : start + ROWS]).data)
