"""Indexes of any kind: build, save, open and search them; approximate ones are built with faiss.

HNSW graphs and IVF-PQ are here; codes of one byte or one bit a number are in `drkit.search.quantized`. How
much of the exact ranking an approximate index finds is measured when it is built.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import torch
from attrs import asdict, field, frozen
from attrs.validators import ge
from numpy.typing import NDArray

from drkit.core.files import check_replaceable
from drkit.data.rows import batched
from drkit.errors import DrkitError
from drkit.search.flat import (
    FAISS,
    IDS,
    MEMORY,
    Candidates,
    FlatIndex,
    check_vectors,
    faiss_library,
    read_about,
    read_mapped,
    reading_index,
    write_faiss,
)
from drkit.search.quantized import QUANTIZED, ApproximateIndex, Quantized, QuantizedIndex
from drkit.search.rankings import Hits, check_queries, check_same_encoder
from drkit.search.vectors import DocIds, Shards, Vectors, float32_blocks

if TYPE_CHECKING:
    from drkit.search.text_encoder import Encoder

_LOGGER = logging.getLogger(__name__)
AnyIndex: TypeAlias = "FlatIndex | HnswIndex | IvfPqIndex | QuantizedIndex"
KINDS: tuple[str, ...] = ("flat", "hnsw", "ivf-pq", *QUANTIZED)
SAMPLE, DEPTH = 200, 10
# A measured recall below this share deserves a hint.
LOW_RECALL = 0.9


def build_index(
    vectors: Vectors | str | Path,
    folder: str | Path,
    *,
    kind: str = "flat",
    settings: Hnsw | IvfPq | Quantized | None = None,
) -> AnyIndex:
    """Build an index of a folder of vectors, save it, and return the saved index.

    kind: flat (exact), hnsw, ivf-pq, int8 or binary; settings: of all but the first. The recall of an approximate
    index is measured with the 10 nearest neighbours of 200 of its own vectors, and stored in its index.json as
    `recall@10`.

    Raises DrkitError if the vectors are incomplete or of queries, ids are not unique or values not finite, kind and
    settings do not match, or `folder` holds something other than an index.
    """
    check_replaceable(Path(folder))
    vectors = vectors if isinstance(vectors, Vectors) else Vectors.open(vectors)
    if vectors.about["role"] == "queries":
        raise DrkitError(
            f"{vectors.folder} holds vectors of queries, but an index needs passages; "
            f"encode them with `drkit encode --collection`"
        )
    if kind == "flat" and settings is None:
        FlatIndex.over(vectors).save(folder)
        return open_index(folder)
    matrix, ids = vectors.shards, vectors.doc_ids
    index: HnswIndex | IvfPqIndex | QuantizedIndex
    if kind == "hnsw" and (settings is None or isinstance(settings, Hnsw)):
        settings = settings or Hnsw(half=matrix.dtype == np.float16)
        index = HnswIndex.build(matrix, ids, settings=settings, encoder=vectors.encoder)
    elif kind == "ivf-pq" and (settings is None or isinstance(settings, IvfPq)):
        index = IvfPqIndex.build(matrix, ids, settings=settings, encoder=vectors.encoder)
    elif kind in QUANTIZED and (settings is None or isinstance(settings, Quantized)):
        index = QuantizedIndex.build(matrix, ids, kind=kind, settings=settings, encoder=vectors.encoder)
    else:
        given = f" with settings {type(settings).__name__}" if settings else ""
        raise DrkitError(f"unsupported index kind {kind!r}{given}; use one of: {', '.join(KINDS)}")
    index.describe(
        **{f"recall@{DEPTH}": round(recall(index, matrix, ids), 4), "recall_sample": min(SAMPLE, len(index))}
    )
    index.save(folder)
    return open_index(folder)


def open_index(folder: str | Path, *, memory: int = MEMORY) -> AnyIndex:
    """Open a saved index of any kind; memory: see `FlatIndex.load`.

    Raises DrkitError if it is missing or cannot be read.
    """
    kind = read_about(Path(folder)).get("kind", "flat")
    _LOGGER.info("opening the %s index %s", kind, folder)
    if kind == "flat":
        return FlatIndex.load(folder, memory=memory)
    if kind not in KINDS:
        raise DrkitError(f"{folder} holds an index of kind {kind!r}; drkit supports {', '.join(KINDS)}")
    if kind in QUANTIZED:
        return QuantizedIndex.load(folder)
    return HnswIndex.load(folder) if kind == "hnsw" else IvfPqIndex.load(folder)


def recall(index: AnyIndex, vectors: Any, doc_ids: DocIds, *, sample: int = SAMPLE, depth: int = DEPTH) -> float:
    """Return the share of the exact `depth` nearest vectors that the index finds, for a sample of its vectors [N,D].

    A hit counts if it scores at least as high as the last exact one, since the order of ties is arbitrary.
    """
    positions = np.linspace(0, len(vectors) - 1, min(sample, len(vectors))).astype(np.int64)
    queries = np.ascontiguousarray(vectors[positions], dtype=np.float32)
    count = min(depth, len(index))
    exact, _ = Candidates(vectors).top(queries, count)
    found = [vectors[doc_ids.find(hits.doc_ids)] for hits in index.search(queries, count)]
    return float(np.mean([_share_found(*each) for each in zip(found, queries, exact, strict=True)]))


def _share_found(rows: NDArray[Any], query: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    least = exact[-1] - 1e-5 * abs(float(exact[-1])) - 1e-6
    return min(1.0, float((rows.astype(np.float32) @ query >= least).sum()) / len(exact))


Kind = TypeVar("Kind", bound="FaissIndex")
MIN_VECTORS_FOR_PQ = 256
_TRAIN_PER_LIST, _TRAIN_MAX = 64, 500_000


class FaissIndex(ApproximateIndex):
    """An approximate index that is one index of faiss; created by `build` or `load`."""

    kind: ClassVar[str]

    def __init__(self, index: Any, ids: DocIds, about: dict[str, Any]) -> None:
        super().__init__(ids, about)
        self._index = index

    @classmethod
    def load(cls: type[Kind], folder: str | Path) -> Kind:
        """Load a saved index, memory-mapped.

        Raises DrkitError if files are missing, broken or inconsistent.
        """
        path = Path(folder)
        faiss_library()
        about = read_about(path, cls.kind, (FAISS, IDS))
        with reading_index(path):
            index, ids = read_mapped(path / FAISS), DocIds.read([path / IDS])
        if not len(ids) == index.ntotal == about.get("count"):
            raise DrkitError(
                f"{path}: {len(ids)} ids do not match {index.ntotal} vectors; rebuild it with `drkit index`"
            )
        return cls(index, ids, about)

    @classmethod
    def _filled(
        cls: type[Kind], index: Any, vectors: Any, ids: DocIds, *, settings: Any, encoder: Mapping[str, Any] | None
    ) -> Kind:
        """Add the vectors block by block."""
        for _, block in float32_blocks(vectors):
            if not index.is_trained:  # float16 storage learns nothing, but requires the call
                index.train(block[:1])
            index.add(block)
        count, dimension = vectors.shape
        about = {"kind": cls.kind, "count": count, "dimension": dimension, "settings": settings, "encoder": encoder}
        return cls(index, ids, about)

    def _parameters(self, depth: int) -> Any:
        """Return faiss's search parameters for this depth."""
        raise NotImplementedError

    def _found(self, queries: NDArray[np.float32], depth: int) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        found = self._index.search(queries, min(depth, len(self)), params=self._parameters(depth))
        for scores, positions in zip(*found, strict=True):  # faiss pads with position -1
            yield positions[positions >= 0], scores[positions >= 0]

    def _vectors_at(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        if hasattr(self._index, "make_direct_map"):  # inverted lists: where each vector is stored, computed once
            self._index.make_direct_map()
        return np.asarray(self._index.reconstruct_batch(positions))

    def _write(self, folder: Path) -> None:
        write_faiss(self._index, folder / FAISS)


@frozen
class Hnsw:
    """Settings of `HnswIndex`.

    links: neighbours of each vector (twice as many in the lowest layer). construction, effort: candidates followed
    while building and while searching the graph (never fewer than the requested depth). half: store float16 vectors.
    """

    links: int = field(default=32, validator=ge(2))
    construction: int = field(default=200, validator=ge(1))
    effort: int = field(default=128, validator=ge(1))
    half: bool = False


class HnswIndex(FaissIndex):
    """An HNSW graph over complete vectors: fast, in memory or mapped. Scores are exact, hits may be missed.

    Source: Malkov and Yashunin 2018.
    """

    kind: ClassVar[str] = "hnsw"

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any] | Shards,
        doc_ids: Sequence[str] | DocIds,
        *,
        settings: Hnsw | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> HnswIndex:
        """Build the graph of vectors [N,D]; with several threads, the result varies slightly between builds.

        Raises DrkitError as `FlatIndex.build` does, or MissingExtraError without faiss.
        """
        faiss, settings, ids = faiss_library(), settings or Hnsw(), DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        dimension, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
        if settings.half:
            index = faiss.IndexHNSWSQ(dimension, faiss.ScalarQuantizer.QT_fp16, settings.links, metric)
        else:
            index = faiss.IndexHNSWFlat(dimension, settings.links, metric)
        index.hnsw.efConstruction = settings.construction
        index.hnsw.efSearch = settings.effort  # for readers of the file that use faiss alone
        return cls._filled(index, vectors, ids, settings=asdict(settings), encoder=encoder)

    def _parameters(self, depth: int) -> Any:
        return faiss_library().SearchParametersHNSW(efSearch=max(int(self._about["settings"]["effort"]), depth))


@frozen
class IvfPq:
    """Settings of `IvfPqIndex`; 0 picks a value that suits the vectors.

    lists: inverted lists (default: 4 times the square root of N, but at least 39 vectors each). code_bytes: bytes
    per vector (default: an eighth of the dimension). probes: lists per search (default: an eighth, at least 16).
    """

    lists: int = field(default=0, validator=ge(0))
    code_bytes: int = field(default=0, validator=ge(0))
    probes: int = field(default=0, validator=ge(0))


class IvfPqIndex(FaissIndex):
    """Inverted lists of product-quantised vectors: small, mapped, and a search reads few lists. Scores are approximate.

    Source: Jegou et al. 2011.
    """

    kind: ClassVar[str] = "ivf-pq"

    @classmethod
    def build(
        cls,
        vectors: NDArray[Any] | Shards,
        doc_ids: Sequence[str] | DocIds,
        *,
        settings: IvfPq | None = None,
        encoder: Mapping[str, Any] | None = None,
    ) -> IvfPqIndex:
        """Build the index of vectors [N,D], trained on a sample of at most 500,000.

        Raises DrkitError as `FlatIndex.build` does, for fewer than 256 vectors, or for settings that do not suit them.
        """
        faiss, ids = faiss_library(), DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        settings = fit_settings(settings or IvfPq(), *vectors.shape)
        dimension, metric = vectors.shape[1], faiss.METRIC_INNER_PRODUCT
        quantizer = faiss.IndexFlatIP(dimension)
        index = faiss.IndexIVFPQ(quantizer, dimension, settings.lists, settings.code_bytes, 8, metric)
        index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
        index.nprobe = settings.probes  # for readers of the file that use faiss alone
        size = max(_TRAIN_PER_LIST * settings.lists, 64 * MIN_VECTORS_FOR_PQ)
        drawn = np.linspace(0, len(vectors) - 1, min(len(vectors), size, _TRAIN_MAX)).astype(np.int64)
        index.train(np.ascontiguousarray(vectors[drawn], dtype=np.float32))
        return cls._filled(index, vectors, ids, settings=asdict(settings), encoder=encoder)

    def _parameters(self, depth: int) -> Any:  # noqa: ARG002
        return faiss_library().SearchParametersIVF(nprobe=int(self._about["settings"]["probes"]))


def fit_settings(settings: IvfPq, count: int, dimension: int) -> IvfPq:
    """Replace zeros in the settings by values that suit `count` vectors of `dimension`.

    Raises DrkitError for fewer than 256 vectors, more lists than vectors, or a code length that does not divide the
    dimension.

    >>> fit_settings(IvfPq(), 1000, 384)
    IvfPq(lists=25, code_bytes=48, probes=16)
    """
    if count < MIN_VECTORS_FOR_PQ:
        raise DrkitError(
            f"an ivf-pq index needs at least {MIN_VECTORS_FOR_PQ} vectors to learn its codes, got {count}; "
            f"use a flat index, which is exact and as fast at this size"
        )
    if settings.lists > count:
        raise DrkitError(f"{settings.lists} lists are too many for {count} vectors; 0 picks a suitable number")
    lists = settings.lists or max(1, min(int(4 * math.sqrt(count)), count // 39))
    divisors = [size for size in range(1, dimension + 1) if dimension % size == 0]
    if settings.code_bytes and settings.code_bytes not in divisors:
        raise DrkitError(
            f"code_bytes must divide the dimension of the vectors, {dimension}; got {settings.code_bytes}: "
            f"use one of {', '.join(map(str, divisors))}, or 0 for a suitable value"
        )
    code_bytes = settings.code_bytes or max(size for size in divisors if size <= max(1, dimension // 8))
    return IvfPq(lists, code_bytes, min(lists, settings.probes or max(16, lists // 8)))


class Retriever:
    """Searches an index of any kind with the encoder that made its vectors.

    encoder: a `TextEncoder`, a `DualEncoder`, a `SentenceTransformerEncoder`, or any `Encoder`.

    Raises DrkitError if their dimensions differ, or the index was built with another encoder.
    """

    def __init__(self, encoder: Encoder, index: AnyIndex) -> None:
        if encoder.dimension != index.dimension:
            raise DrkitError(
                f"the encoder has {encoder.dimension} dimensions, the index {index.dimension}; "
                f"encode the passages again with this encoder"
            )
        if index.encoder is not None:
            check_same_encoder(index.encoder, encoder.identity(), "the index")
        self.encoder, self.index = encoder, index

    @classmethod
    def load(cls, run: str | Path, *, device: str | torch.device = "cpu") -> Retriever:
        """Load the retriever of a finished run from its folders `encoder` and `index`.

        Raises DrkitError if either folder is missing or cannot be read.
        """
        from drkit.search.text_encoder import read_encoder

        missing = [name for name in ("encoder", "index") if not (Path(run) / name).is_dir()]
        if missing:
            raise DrkitError(
                f"{run} has no folder {' and no folder '.join(missing)}; give the folder of a finished run, "
                f"or finish it with `drkit run {run}`"
            )
        return cls(read_encoder(Path(run) / "encoder", device), open_index(Path(run) / "index"))

    @classmethod
    def build(cls, encoder: Encoder, texts: Iterable[tuple[str, str]], folder: str | Path) -> Retriever:
        """Encode (id, text) passages into `folder` in this process, and search them exactly.

        Raises DrkitError as `encode_corpus` and `FlatIndex.build` do.
        """
        from drkit.core.processes import Shard
        from drkit.search.encode import encode_corpus

        encode_corpus(encoder, texts, folder, shard=Shard(0, 1))
        return cls(encoder, FlatIndex.over(Vectors.open(folder)))

    def __len__(self) -> int:
        return len(self.index)

    def search(self, texts: Sequence[str], depth: int) -> list[Hits]:
        """Return the best `depth` passages of each text: (doc_ids, scores), best first.

        Raises DrkitError for an empty text.
        """
        check_queries(texts)
        return self.index.search(self.encoder.encode_queries(texts), depth) if texts else []

    def score(self, texts: Sequence[str], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Score each text against its own list of passages, as `search` would (approximately for ivf-pq).

        NaN for an id that is not in the index. Raises DrkitError for an empty text, or if the numbers of texts and
        lists differ.
        """
        check_queries(texts)
        return self.index.score(self.encoder.encode_queries(texts), doc_ids)

    def stream(self, texts: Iterable[str], depth: int, batch: int = 1024) -> Iterator[Hits]:
        """Yield what `search` returns for any number of texts, a batch at a time."""
        for some in batched(texts, batch):
            check_queries(some)
            yield from self.index.stream(self.encoder.encode_queries(some), depth)
