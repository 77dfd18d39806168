"""A flat index: exact search by inner product, the same answer whichever engine finds the candidates.

An engine's float32 sums depend on how it blocks the matrix. So it is asked for a few more candidates than wanted,
and these are scored anew, each by itself: scores and order depend on the vectors alone, ties stand by place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from drkit.core.files import replacing_folder
from drkit.errors import DrkitError
from drkit.search.exact import ROWS, Engine, FaissEngine, make_engine
from drkit.search.hits import Hits
from drkit.search.ids import DocIds

if TYPE_CHECKING:
    from numpy.typing import NDArray

VECTORS, IDS, FAISS, ABOUT = "vectors.npy", "ids.arrow", "index.faiss", "index.json"
SPARE = 16
BLOCK = 256


class FlatIndex:
    """Vectors f32[N,D] and their N document ids. Under cosine similarity, give vectors of length 1.

    Made by `build` or `load`. engine: what finds candidates.
    """

    def __init__(self, vectors: NDArray[np.float32], doc_ids: DocIds, engine: Engine) -> None:
        self.vectors, self.engine = vectors, engine
        self._ids = doc_ids

    @classmethod
    def build(cls, vectors: NDArray[np.float32], doc_ids: Sequence[str], *, engine: str = "auto") -> FlatIndex:
        """An index of vectors f32[N,D], which may be memory-mapped; engine: auto, faiss or torch.

        Raises DrkitError for no vectors, another number of ids, a repeated id, or a value that is not finite.
        """
        ids = DocIds.of(doc_ids)
        _check(vectors, ids)
        return cls(vectors, ids, make_engine(vectors, name=engine))

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dimension(self) -> int:
        """D, the length of a vector."""
        return int(self.vectors.shape[1])

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """The best `depth` documents (all where there are fewer) of each query f32[Q,D].

        Raises DrkitError where the queries have another dimension, or `depth` is no positive number.
        """
        if queries.ndim != 2 or queries.shape[1] != self.dimension:
            raise DrkitError(
                f"queries of shape {queries.shape} in an index of vectors of {self.dimension}; "
                f"search with the encoder that the index was built with"
            )
        if depth < 1:
            raise DrkitError(f"depth {depth}; ask for at least one passage")
        starts = range(0, len(queries), BLOCK)
        return [hits for start in starts for hits in self._block(queries[start : start + BLOCK], depth)]

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """The exact inner products of each query f32[Q,D] with documents of its own; NaN for an id that is not here.

        Raises DrkitError where there are more or fewer lists of ids than queries.
        """
        if len(queries) != len(doc_ids):
            raise DrkitError(f"{len(doc_ids)} lists of documents for {len(queries)} queries; give each query its own")
        return [self._products(query, self._ids.find(names)) for query, names in zip(queries, doc_ids, strict=True)]

    def _products(self, query: NDArray[np.float32], places: NDArray[np.int64]) -> list[float]:
        scores = np.full(len(places), np.nan, dtype=np.float32)
        known = places >= 0
        scores[known] = products(self.vectors[places[known]], query)
        return [float(score) for score in scores]

    def save(self, folder: str | Path) -> Path:
        """Write vectors.npy, ids.arrow, index.json and, where faiss is the engine, index.faiss; atomically."""
        with replacing_folder(Path(folder)) as temporary:
            out = np.lib.format.open_memmap(temporary / VECTORS, mode="w+", dtype=np.float32, shape=self.vectors.shape)
            for start in range(0, len(self), ROWS):
                out[start : start + ROWS] = self.vectors[start : start + ROWS]
            out.flush()
            del out
            self._ids.write(temporary / IDS)
            if isinstance(self.engine, FaissEngine):
                self.engine.write(temporary / FAISS)
            about = {"format": 1, "metric": "inner_product", "count": len(self), "dimension": self.dimension}
            (temporary / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path, *, engine: str = "auto") -> FlatIndex:
        """The index that `save` wrote; its vectors stay on disk, memory-mapped.

        Raises DrkitError where a file is missing, cannot be read or does not fit the others.
        """
        place = Path(folder)
        missing = [name for name in (VECTORS, IDS, ABOUT) if not (place / name).is_file()]
        if missing:
            raise DrkitError(f"{place} is no index: {', '.join(missing)} missing; build it again")
        try:
            about = json.loads((place / ABOUT).read_text(encoding="utf-8"))
            vectors = np.load(place / VECTORS, mmap_mode="r", allow_pickle=False)
            ids = DocIds.read([place / IDS])
            index = cls(vectors, ids, make_engine(vectors, place / FAISS, engine))
        except (OSError, ValueError, RuntimeError) as error:
            raise DrkitError(f"cannot read the index in {place}: {error}; build it again") from error
        if vectors.shape != (about.get("count"), about.get("dimension")) or len(ids) != len(vectors):
            raise DrkitError(f"{place}: {len(ids)} ids and vectors of shape {vectors.shape}; build the index again")
        return index

    def _block(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        count = min(len(self), depth + SPARE)
        found = zip(queries, *self.engine.top(queries, count), strict=True)
        return [
            self._exact(query, self._enough(query, scores, places, depth), depth) for query, scores, places in found
        ]

    def _enough(
        self, query: NDArray[np.float32], scores: NDArray[np.float32], places: NDArray[np.int64], depth: int
    ) -> NDArray[np.int64]:
        """Candidates i64[M] among which the best `depth` are for sure: the last one scores below them."""
        while depth < len(scores) < len(self) and scores[depth - 1] - scores[-1] <= 1e-6 * abs(scores[0]):
            wider = self.engine.top(query[None], min(len(self), 4 * len(scores)))
            scores, places = wider[0][0], wider[1][0]
        return places[places >= 0]

    def _exact(self, query: NDArray[np.float32], places: NDArray[np.int64], depth: int) -> Hits:
        scores = products(self.vectors[places], query)
        best = np.lexsort((places, -scores))[:depth]
        return Hits(tuple(self._ids.take(places[best])), tuple(scores[best].tolist()))


def products(rows: NDArray[np.float32], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """f32[M]: inner products of rows f32[M,D] and one query f32[D], each by itself, summed in float64."""
    sums: NDArray[np.float64] = (rows.astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    return sums.astype(np.float32)


def _check(vectors: NDArray[np.float32], doc_ids: DocIds) -> None:
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
