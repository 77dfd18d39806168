"""Approximate indexes: what they share, and those of small codes, one byte or one bit for each number of a vector.

A search compares the query with the codes of all vectors, by faiss, and scores the best candidates again: with the
vectors themselves, which stay in their file, or with vectors decoded from the codes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from attrs import asdict, field, frozen
from attrs.validators import ge, in_
from numpy.typing import NDArray

from drkit.core.files import replacing_folder
from drkit.errors import DrkitError
from drkit.search.flat import (
    FAISS,
    IDS,
    VECTORS,
    check_search,
    check_vectors,
    faiss_library,
    products,
    read_about,
    read_mapped,
    reading_index,
    score_positions,
    write_about,
    write_faiss,
    write_vectors,
)
from drkit.search.rankings import Hits
from drkit.search.vectors import DocIds, Shards, float32_blocks

INT8, WITH_VECTORS = "int8", "vectors"
QUANTIZED, RESCORE = (INT8, "binary"), (WITH_VECTORS, "codes")
_TRAIN_MAX, _BATCH = 100_000, 1024


@frozen
class Quantized:
    """Settings of `QuantizedIndex`.

    rescore: score candidates again with the `vectors`, which the index then stores too, or only with their `codes`.
    candidates: how many are scored again for each requested hit.
    """

    rescore: str = field(default=WITH_VECTORS, validator=in_(RESCORE))
    candidates: int = field(default=4, validator=ge(1))


class Codes(Protocol):
    """The codes of all vectors, in a faiss index."""

    index: Any

    def top(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the positions i64[Q,count] of the best codes for queries f32[Q,D]; -1: none."""

    def decode(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return vectors f32[n,D] decoded from the codes at positions i64[n]."""


class Int8Codes:
    """One byte per number: each dimension's range, in a sample of the vectors, is cut into 256 equal steps."""

    def __init__(self, index: Any) -> None:
        self.index = index

    @classmethod
    def of(cls, vectors: Any) -> Int8Codes:
        """Return the codes of vectors [N,D], an array or `Shards`."""
        faiss = faiss_library()
        made = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        drawn = np.linspace(0, len(vectors) - 1, min(len(vectors), _TRAIN_MAX)).astype(np.int64)
        made.train(np.ascontiguousarray(vectors[drawn], dtype=np.float32))
        for _, block in float32_blocks(vectors):
            made.add(block)
        return cls(made)

    @classmethod
    def read(cls, file: Path) -> Int8Codes:
        """Read the codes from faiss's file, memory-mapped."""
        return cls(read_mapped(file))

    def write(self, file: Path) -> None:
        """Write the codes in faiss's format."""
        write_faiss(self.index, file)

    def top(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the positions of the best inner products; see `Codes.top`."""
        found: NDArray[np.int64] = self.index.search(queries, count)[1]
        return found

    def decode(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the middle of each number's step; see `Codes.decode`."""
        decoded: NDArray[np.float32] = self.index.reconstruct_batch(positions)
        return decoded


class BinaryCodes:
    """One bit per number: whether it is positive. Queries are compared by Hamming distance."""

    def __init__(self, index: Any, dimension: int) -> None:
        self.index, self._dimension = index, dimension
        self._bits = faiss_library().vector_to_array(index.xb).reshape(index.ntotal, -1)

    @classmethod
    def of(cls, vectors: Any) -> BinaryCodes:
        """Return the codes of vectors [N,D], an array or `Shards`."""
        dimension = int(vectors.shape[1])
        made = faiss_library().IndexBinaryFlat(8 * -(-dimension // 8))
        for _, block in float32_blocks(vectors):
            made.add(_signs(block))
        return cls(made, dimension)

    @classmethod
    def read(cls, file: Path, dimension: int) -> BinaryCodes:
        """Read the codes of vectors of `dimension` numbers from faiss's file."""
        return cls(faiss_library().read_index_binary(str(file)), dimension)

    def write(self, file: Path) -> None:
        """Write the codes in faiss's format."""
        faiss_library().write_index_binary(self.index, str(file))

    def top(self, queries: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the positions of the smallest Hamming distances; see `Codes.top`."""
        found: NDArray[np.int64] = self.index.search(_signs(queries), count)[1]
        return found

    def decode(self, positions: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return vectors of length 1 with the signs of the codes; see `Codes.decode`."""
        signs = np.unpackbits(self._bits[positions], axis=1, count=self._dimension).astype(np.float32)
        return (2 * signs - 1) / np.float32(np.sqrt(self._dimension))


def _signs(vectors: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.packbits(vectors > 0, axis=1)


class ApproximateIndex:
    """What approximate indexes share: the ids of the vectors, and the description of the index (index.json)."""

    def __init__(self, ids: DocIds, about: dict[str, Any]) -> None:
        self._ids, self._about = ids, about
        self.encoder, self.dimension = about.get("encoder"), int(about["dimension"])

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """Return the `depth` documents found for each query f32[Q,D], or fewer if the search reaches fewer.

        Raises DrkitError if the queries have another dimension, or `depth` is less than 1.
        """
        return list(self.stream(queries, depth))

    def stream(self, queries: NDArray[np.float32], depth: int) -> Iterator[Hits]:
        """Yield what `search` returns, one query at a time; ties are ordered by position."""
        check_search(queries, depth, self.dimension)
        for start in range(0, len(queries), _BATCH):
            part = np.ascontiguousarray(queries[start : start + _BATCH], dtype=np.float32)
            for positions, scores in self._found(part, depth):
                best = np.lexsort((positions, -scores))[:depth]
                yield Hits(tuple(self._ids.take(positions[best])), tuple(scores[best].tolist()))

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the products of each query f32[Q,D] with the stored vectors of its own documents; NaN for unknown ids.

        Raises DrkitError if the numbers of queries and lists differ.
        """
        return score_positions(queries, [self._ids.find(names) for names in doc_ids], self._vectors_at)

    def save(self, folder: str | Path) -> Path:
        """Write index.faiss, ids.arrow, index.json and, if candidates are scored with them, vectors.npy; atomically."""
        with replacing_folder(Path(folder)) as temporary:
            self._write(temporary)
            self._ids.write(temporary / IDS)
            write_about(temporary, self._about)
        return Path(folder)

    def describe(self, **facts: Any) -> None:
        """Set the facts, such as the measured recall, that `save` writes into index.json."""
        self._about["facts"] = facts

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that it was built with, automatic ones filled in."""
        return dict(self._about["settings"])

    @property
    def facts(self) -> dict[str, Any]:
        """What to report about the index besides its size: the recall measured when it was built."""
        return dict(self._about.get("facts", {}))

    def _found(self, queries: NDArray[np.float32], depth: int) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Yield the positions i64[n] and scores f32[n] of at least `depth` hits, if found, for each query f32[Q,D]."""
        raise NotImplementedError

    def _vectors_at(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Return the stored vectors [n,D] at positions i64[n]."""
        raise NotImplementedError

    def _write(self, folder: Path) -> None:
        """Write the vectors or their codes."""
        raise NotImplementedError


class QuantizedIndex(ApproximateIndex):
    """Codes of vectors, int8 or binary, and the ids of the vectors; created by `build` or `load`.

    Sources: binary codes with a second, finer score: Yamada et al. 2021 (BPR); the codes are faiss's
    IndexScalarQuantizer and IndexBinaryFlat.
    """

    def __init__(self, codes: Int8Codes | BinaryCodes, ids: DocIds, vectors: Any, about: dict[str, Any]) -> None:
        super().__init__(ids, about)
        self.kind, self._codes, self._vectors = about["kind"], codes, vectors

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any] | Shards,
        doc_ids: Sequence[str] | DocIds,
        *,
        kind: str = INT8,
        settings: Quantized | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> QuantizedIndex:
        """Build the index of vectors [N,D]; kind: int8 or binary.

        Raises DrkitError as `FlatIndex.build` does, or MissingExtraError without faiss.
        """
        settings, ids = settings or Quantized(), DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        count, dimension = vectors.shape
        about = {"kind": kind, "count": count, "dimension": dimension, "settings": asdict(settings), "encoder": encoder}
        codes = Int8Codes.of(vectors) if kind == INT8 else BinaryCodes.of(vectors)
        return cls(codes, ids, vectors if settings.rescore == WITH_VECTORS else None, about)

    @classmethod
    def load(cls, folder: str | Path) -> QuantizedIndex:
        """Load a saved index; int8 codes and vectors stay in their files, memory-mapped.

        Raises DrkitError if files are missing, broken or inconsistent.
        """
        path = Path(folder)
        about = read_about(path, files=(FAISS, IDS))
        with reading_index(path):
            has_vectors = about["settings"]["rescore"] == WITH_VECTORS
            is_int8, dimension = about["kind"] == INT8, int(about["dimension"])
            codes = Int8Codes.read(path / FAISS) if is_int8 else BinaryCodes.read(path / FAISS, dimension)
            vectors = np.load(path / VECTORS, mmap_mode="r", allow_pickle=False) if has_vectors else None
            ids = DocIds.read([path / IDS])
        counts = {len(ids), codes.index.ntotal, about.get("count"), len(ids) if vectors is None else len(vectors)}
        if len(counts) > 1:
            raise DrkitError(
                f"{path}: {len(ids)} ids do not match {codes.index.ntotal} codes and their vectors; rebuild it with "
                f"`drkit index`"
            )
        return cls(codes, ids, vectors, about)

    def _found(self, queries: NDArray[np.float32], depth: int) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        count = min(len(self), depth * int(self.settings["candidates"]))
        for query, positions in zip(queries, self._codes.top(queries, count), strict=True):
            found = np.sort(positions[positions >= 0])  # in the order of the file
            yield found, products(self._vectors_at(found), query)

    def _vectors_at(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        return self._codes.decode(positions) if self._vectors is None else np.asarray(self._vectors[positions])

    def _write(self, folder: Path) -> None:
        self._codes.write(folder / FAISS)
        if self._vectors is not None:
            write_vectors(folder / VECTORS, self._vectors)
