"""Approximate indexes by faiss: HNSW graphs, and inverted lists of product-quantised vectors.

Both rank by inner product. How much of the exact ranking they find is measured when they are built.
Sources: Malkov and Yashunin 2018 (HNSW); Jegou et al. 2011 (IVF-PQ).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from attrs import asdict, field, frozen
from attrs.validators import ge
from pyarrow import ArrowException

from drkit.core.files import replacing_folder
from drkit.errors import DrkitError, MissingExtraError
from drkit.search.hits import Hits
from drkit.search.ids import DocIds
from drkit.search.index import check_search, check_vectors, score_places
from drkit.search.index_files import FAISS, IDS, read_about, write_about
from drkit.search.shards import Shards, float32_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_FOR_PQ = 256
_TRAIN_A_LIST, _TRAIN_MOST = 64, 500_000
_BATCH = 1024


@frozen
class Hnsw:
    """Settings of `HnswIndex`.

    links: neighbours a vector keeps (twice as many in the lowest layer). construction, effort: candidates followed
    while the graph is built, and while it is searched (never fewer than the depth asked for). half: float16 vectors.
    """

    links: int = field(default=32, validator=ge(2))
    construction: int = field(default=200, validator=ge(1))
    effort: int = field(default=128, validator=ge(1))
    half: bool = False


@frozen
class IvfPq:
    """Settings of `IvfPqIndex`; 0 takes what fits the vectors.

    lists: inverted lists (4 times the square root of N, 39 vectors a list at least). code_bytes: bytes that a vector
    becomes (an eighth of its dimension). probes: lists that a search goes through (an eighth of them, 16 at least).
    """

    lists: int = field(default=0, validator=ge(0))
    code_bytes: int = field(default=0, validator=ge(0))
    probes: int = field(default=0, validator=ge(0))


class HnswIndex:
    """A graph over whole vectors: fast, all of it in memory or mapped. Scores are exact, hits may be missed."""

    kind: ClassVar[str] = "hnsw"

    def __init__(self, found: Approximate) -> None:
        self._found = found
        self.encoder, self.dimension = found.about.get("encoder"), int(found.about["dimension"])

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any] | Shards,
        doc_ids: Sequence[str] | DocIds,
        *,
        settings: Hnsw | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> HnswIndex:
        """The graph of vectors [N,D]. Built by several threads it differs a little from time to time.

        Raises DrkitError as `FlatIndex.build` does, or MissingExtraError without faiss.
        """
        faiss, how, ids = _faiss(), settings or Hnsw(), DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        dimension = vectors.shape[1]
        if how.half:
            kind = faiss.ScalarQuantizer.QT_fp16
            index = faiss.IndexHNSWSQ(dimension, kind, how.links, faiss.METRIC_INNER_PRODUCT)
        else:
            index = faiss.IndexHNSWFlat(dimension, how.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = how.construction
        return cls(Approximate.fill(index, vectors, ids, _about(cls.kind, vectors, asdict(how), encoder)))

    @classmethod
    def load(cls, folder: str | Path) -> HnswIndex:
        """The index that `save` wrote, memory-mapped. Raises DrkitError where it cannot be read."""
        return cls(Approximate.read(Path(folder), cls.kind))

    def __len__(self) -> int:
        return len(self._found.ids)

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """The `depth` documents found for each query f32[Q,D], fewer where the search reaches no more.

        Raises DrkitError where the queries have another dimension, or `depth` is no positive number.
        """
        return list(self.stream(queries, depth))

    def stream(self, queries: NDArray[np.float32], depth: int) -> Iterator[Hits]:
        """`search`, the hits of one query at a time."""
        settings = self._found.about["settings"]
        parameters = _faiss().SearchParametersHNSW(efSearch=max(int(settings["effort"]), depth))
        return self._found.stream(queries, depth, parameters)

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Products of each query f32[Q,D] with the stored vectors of documents of its own; NaN for an unknown id.

        Raises DrkitError where there are more or fewer lists of ids than queries.
        """
        return self._found.score(queries, doc_ids)

    def save(self, folder: str | Path) -> Path:
        """Write index.faiss, ids.arrow and index.json, atomically."""
        return self._found.write(Path(folder))

    def describe(self, **facts: Any) -> None:
        """Add facts, as the measured recall, to what `save` writes into index.json."""
        self._found.about["facts"] = facts

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth telling of it beside its size: the recall that was measured when it was built."""
        return dict(self._found.about.get("facts", {}))


class IvfPqIndex:
    """Vectors cut to some bytes each, in lists of which a search reads a few: small, mapped, scores approximate."""

    kind: ClassVar[str] = "ivf-pq"

    def __init__(self, found: Approximate) -> None:
        self._found = found
        self.encoder, self.dimension = found.about.get("encoder"), int(found.about["dimension"])

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any] | Shards,
        doc_ids: Sequence[str] | DocIds,
        *,
        settings: IvfPq | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> IvfPqIndex:
        """Trained on a sample of vectors [N,D], 500,000 at most.

        Raises DrkitError as `FlatIndex.build` does, for fewer than 256 vectors, or settings that do not fit them.
        """
        faiss, ids = _faiss(), DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        how = fitted(settings or IvfPq(), *vectors.shape)
        quantizer = faiss.IndexFlatIP(vectors.shape[1])
        metric = faiss.METRIC_INNER_PRODUCT
        index = faiss.IndexIVFPQ(quantizer, vectors.shape[1], how.lists, how.code_bytes, 8, metric)
        index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
        index.train(_sample(vectors, max(_TRAIN_A_LIST * how.lists, 64 * LEAST_FOR_PQ)))
        return cls(Approximate.fill(index, vectors, ids, _about(cls.kind, vectors, asdict(how), encoder)))

    @classmethod
    def load(cls, folder: str | Path) -> IvfPqIndex:
        """The index that `save` wrote, memory-mapped. Raises DrkitError where it cannot be read."""
        return cls(Approximate.read(Path(folder), cls.kind))

    def __len__(self) -> int:
        return len(self._found.ids)

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """The `depth` documents found for each query f32[Q,D], fewer where the lists that were read hold no more.

        Raises DrkitError where the queries have another dimension, or `depth` is no positive number.
        """
        return list(self.stream(queries, depth))

    def stream(self, queries: NDArray[np.float32], depth: int) -> Iterator[Hits]:
        """`search`, the hits of one query at a time."""
        parameters = _faiss().SearchParametersIVF(nprobe=int(self._found.about["settings"]["probes"]))
        return self._found.stream(queries, depth, parameters)

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Products of each query f32[Q,D] with the stored vectors of documents of its own; NaN for an unknown id.

        Raises DrkitError where there are more or fewer lists of ids than queries.
        """
        return self._found.score(queries, doc_ids)

    def save(self, folder: str | Path) -> Path:
        """Write index.faiss, ids.arrow and index.json, atomically."""
        return self._found.write(Path(folder))

    def describe(self, **facts: Any) -> None:
        """Add facts, as the measured recall, to what `save` writes into index.json."""
        self._found.about["facts"] = facts

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth telling of it beside its size: the recall that was measured when it was built."""
        return dict(self._found.about.get("facts", {}))


@frozen(eq=False)
class Approximate:
    """What the two kinds share: faiss's index, the ids of its vectors, and what index.json says."""

    index: Any
    ids: DocIds
    about: dict[str, Any]

    @classmethod
    def fill(cls, index: Any, vectors: Any, ids: DocIds, about: dict[str, Any]) -> Approximate:
        """Add the vectors, block by block."""
        for _, block in float32_blocks(vectors):
            if not index.is_trained:  # float16 storage has nothing to learn, but wants to be asked
                index.train(block[:1])
            index.add(block)
        return cls(index, ids, about)

    @classmethod
    def read(cls, folder: Path, kind: str) -> Approximate:
        """From a folder, mapped. Raises DrkitError where files are missing, broken or do not fit each other."""
        faiss, about = _faiss(), read_about(folder, kind, (FAISS, IDS))
        mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)
        try:
            made = cls(faiss.read_index(str(folder / FAISS), mapped), DocIds.read([folder / IDS]), about)
        except (OSError, RuntimeError, ArrowException) as error:
            raise DrkitError(f"cannot read the index in {folder}: {error}; build it again") from error
        if not len(made.ids) == made.index.ntotal == about.get("count"):
            raise DrkitError(f"{folder}: {len(made.ids)} ids for {made.index.ntotal} vectors; build the index again")
        return made

    def write(self, folder: Path) -> Path:
        """Write the folder, atomically."""
        with replacing_folder(folder) as temporary:
            _faiss().write_index(self.index, str(temporary / FAISS))
            self.ids.write(temporary / IDS)
            write_about(temporary, self.about)
        return folder

    def stream(self, queries: NDArray[np.float32], depth: int, parameters: Any) -> Iterator[Hits]:
        """Hits, query by query; the places that faiss leaves empty (-1) are left out, ties stand by place."""
        check_search(queries, depth, self.index.d)
        count = min(depth, len(self.ids))
        for start in range(0, len(queries), _BATCH):
            part = np.ascontiguousarray(queries[start : start + _BATCH], dtype=np.float32)
            for scores, places in zip(*self.index.search(part, count, params=parameters), strict=True):
                scores, places = scores[places >= 0], places[places >= 0]
                best = np.lexsort((places, -scores))
                yield Hits(tuple(self.ids.take(places[best])), tuple(scores[best].tolist()))

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Products with what the index holds of the vectors."""
        if hasattr(self.index, "make_direct_map"):  # lists: where each vector stands, made once
            self.index.make_direct_map()
        return score_places(queries, [self.ids.find(names) for names in doc_ids], self.index.reconstruct_batch)


def fitted(settings: IvfPq, count: int, dimension: int) -> IvfPq:
    """The settings with their zeros filled in for `count` vectors of `dimension`.

    Raises DrkitError where they do not fit: fewer than 256 vectors, more lists than vectors, a code of another length
    than divides the dimension.

    >>> fitted(IvfPq(), 1000, 384)
    IvfPq(lists=25, code_bytes=48, probes=16)
    """
    if count < LEAST_FOR_PQ:
        raise DrkitError(
            f"{count} vectors are too few for an ivf-pq index, which learns its codes from {LEAST_FOR_PQ} at least; "
            f"at this size a flat index is exact and as fast"
        )
    if settings.lists > count:
        raise DrkitError(f"{settings.lists} lists for {count} vectors; 0 lets drkit choose")
    lists = settings.lists or max(1, min(int(4 * math.sqrt(count)), count // 39))
    fits = [size for size in range(1, dimension + 1) if dimension % size == 0]
    if settings.code_bytes and settings.code_bytes not in fits:
        raise DrkitError(
            f"codes of {settings.code_bytes} bytes for vectors of {dimension}: the dimension has to be a multiple; "
            f"one of {', '.join(map(str, fits))}, or 0 to let drkit choose"
        )
    code = settings.code_bytes or max(size for size in fits if size <= max(1, dimension // 8))
    return IvfPq(lists, code, min(lists, settings.probes or max(16, lists // 8)))


def _sample(vectors: Any, size: int) -> NDArray[np.float32]:
    """Some of the vectors, spread evenly, the same each time."""
    places = np.linspace(0, len(vectors) - 1, min(len(vectors), size, _TRAIN_MOST)).astype(np.int64)
    return np.ascontiguousarray(vectors[places], dtype=np.float32)


def _about(kind: str, vectors: Any, settings: Any, encoder: Mapping[str, Any] | None) -> dict[str, Any]:
    count, dimension = vectors.shape
    return {"kind": kind, "count": count, "dimension": dimension, "settings": settings, "encoder": encoder}


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("an approximate index", "faiss", "cpu") from None
    return faiss
