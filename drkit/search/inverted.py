"""Inverted indexes: for each word, the passages that have it, and its weight in each.

They search vectors that are scores of words (pooling `lexical`), which may begin with a dense vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from drkit.core.files import replacing_folder
from drkit.encoders.pooling import DENSE
from drkit.errors import DrkitError
from drkit.search.flat import IDS, check_search, dot_products, read_index_file, reading_index, write_about
from drkit.search.postings import Postings, best_positions
from drkit.search.rankings import Found, Hits, check_one_list_per_query
from drkit.search.vectors import DocIds, Vectors


class InvertedIndex:
    """Exact search by inner product of vectors [N,V] that are mostly 0, none below 0, or [N,D+V] with a dense part.

    Create one with `over` or `load`. dense: f[N,D], D may be 0. encoder: the identity of the encoder that made the
    vectors. Without a dense part, a passage that shares no word with the query is not a hit; ties are in the order of
    the passages. The dense part of a query is multiplied with all passages, one by one.
    """

    kind: ClassVar[str] = "inverted"
    settings: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self, postings: Postings, dense: NDArray[Any], doc_ids: DocIds, encoder: Mapping[str, Any] | None = None
    ) -> None:
        self.postings, self.dense, self.encoder, self.doc_ids = postings, dense, encoder, doc_ids

    @classmethod
    def over(cls, vectors: Vectors) -> InvertedIndex:
        """Build an index over an opened folder of sparse vectors. Raises DrkitError for a duplicate id."""
        vectors.doc_ids.check_unique()
        postings, dense = Postings.of(vectors.sparse, vectors.dimension).split(vectors.about.get("dense", 0))
        return cls(postings, dense, vectors.doc_ids, vectors.encoder)

    def within(self, positions: range) -> InvertedIndex:
        """Return an index of the passages at a range of positions, whose words are copied."""
        all_of = self.postings
        inside = (all_of.passages >= positions.start) & (all_of.passages < positions.stop)
        starts = np.concatenate([[0], np.cumsum(inside)])[all_of.starts]
        kept = (all_of.passages[inside] - all_of.passages.dtype.type(positions.start), all_of.weights[inside])
        dense = self.dense[positions.start : positions.stop]
        ids = self.doc_ids.within(positions)
        return InvertedIndex(Postings(*kept, starts, len(positions)), dense, ids, self.encoder)

    def __len__(self) -> int:
        return self.postings.count

    @property
    def dimension(self) -> int:
        """V, the number of words."""
        return len(self.postings.starts) - 1

    @property
    def facts(self) -> dict[str, Any]:
        """The mean number of words of a passage."""
        return {"words": round(len(self.postings.passages) / max(len(self), 1), 1)}

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """Return the best `depth` documents of each query f32[Q,V], or fewer, if fewer share a word with it.

        Raises DrkitError if the queries have another dimension, or `depth` is less than 1.
        """
        return [Hits.at(self.doc_ids, *found) for found in self.rank(queries, depth)]

    def rank(self, queries: NDArray[np.float32], depth: int) -> Iterator[Found]:
        """Yield the positions and scores of what `search` returns, one query at a time."""
        check_search(queries, depth, self.dimension)
        for query in queries:
            scores, vector = self.postings.scores(*self._words(query)), self._vector(query)
            if vector.any():
                scores += dot_products(self.dense, vector)
                best = np.lexsort((np.arange(len(scores)), -scores))[:depth]
            else:
                best = best_positions(scores, depth)
            yield best, scores[best]

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the scores of each query f32[Q,V] for its own documents; NaN for an unknown id.

        Raises DrkitError if the numbers of queries and lists differ.
        """
        check_one_list_per_query(len(doc_ids), len(queries))
        found = []
        for query, names in zip(queries, doc_ids, strict=True):
            positions = self.doc_ids.find(names)
            scores = self.postings.scores_at(*self._words(query), positions)
            scores += dot_products(self.dense[positions], self._vector(query))
            found.append([float(score) for score in scores])
        return found

    def only(self, part: str, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return queries f32[Q,D+V] with 0 outside a part, `dense` or `lexical`, so that they search by it alone."""
        kept = np.arange(self.dimension) < self.dense.shape[1]
        return np.where(kept == (part == DENSE), queries, np.float32(0))

    def _vector(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the dense part of a query, f32[D]."""
        return query[: self.dense.shape[1]]

    def _words(self, query: NDArray[np.float32]) -> tuple[list[int], NDArray[np.float32]]:
        """Return the words of a query, ascending, and their scores f32[n]."""
        words = self.dense.shape[1] + np.flatnonzero(query[self.dense.shape[1] :])
        return words.tolist(), query[words]

    def save(self, folder: str | Path) -> Path:
        """Write passages.npy, weights.npy, starts.npy, dense.npy, ids.arrow and index.json, atomically."""
        arrays = {name: getattr(self.postings, name) for name in _ARRAYS[:3]} | {"dense": self.dense}
        with replacing_folder(Path(folder)) as temporary:
            for name, array in arrays.items():
                np.save(temporary / f"{name}.npy", array, allow_pickle=False)
            self.doc_ids.write(temporary / IDS)
            about = {"kind": self.kind, "count": len(self), "dimension": self.dimension, "facts": self.facts}
            write_about(temporary, {**about, "encoder": self.encoder})
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> InvertedIndex:
        """Load a saved index, memory-mapped. Raises DrkitError if files are missing, broken or inconsistent."""
        path, files = Path(folder), [f"{name}.npy" for name in _ARRAYS]
        about = read_index_file(path, cls.kind, (*files, IDS))
        with reading_index(path):
            passages, weights, starts, dense = (
                np.load(path / name, mmap_mode="r", allow_pickle=False) for name in files
            )
            postings, ids = Postings(passages, weights, starts, about["count"]), DocIds.read([path / IDS])
            made = cls(postings, dense, ids, about["encoder"])
        if not len(ids) == len(made) == len(dense) or not len(passages) == len(weights) == starts[-1]:
            raise DrkitError(
                f"{len(made.doc_ids)} ids, {len(passages)} passages of words and {len(weights)} weights do not "
                f"match index.json; rebuild it with `drkit index`",
                where=path,
            )
        return made


_ARRAYS = ("passages", "weights", "starts", "dense")
