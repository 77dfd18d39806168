"""Inverted lists of product-quantised vectors (Jegou et al. 2011), by faiss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from attrs import asdict, field, frozen
from attrs.validators import ge

from drkit.errors import DrkitError
from drkit.search.approximate import ApproximateIndex, faiss_library
from drkit.search.ids import DocIds
from drkit.search.index import check_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.search.shards import Shards

LEAST_FOR_PQ = 256
_TRAIN_A_LIST, _TRAIN_MOST = 64, 500_000


@frozen
class IvfPq:
    """Settings of `IvfPqIndex`; 0 takes what fits the vectors.

    lists: inverted lists (4 times the square root of N, 39 vectors a list at least). code_bytes: bytes that a vector
    becomes (an eighth of its dimension). probes: lists that a search goes through (an eighth of them, 16 at least).
    """

    lists: int = field(default=0, validator=ge(0))
    code_bytes: int = field(default=0, validator=ge(0))
    probes: int = field(default=0, validator=ge(0))


class IvfPqIndex(ApproximateIndex):
    """Vectors cut to some bytes each, in lists of which a search reads a few: small, mapped, scores approximate."""

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
        """Trained on a sample of vectors [N,D], 500,000 at most.

        Raises DrkitError as `FlatIndex.build` does, for fewer than 256 vectors, or settings that do not fit them.
        """
        faiss, ids = faiss_library(), DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        how = fitted(settings or IvfPq(), *vectors.shape)
        quantizer = faiss.IndexFlatIP(vectors.shape[1])
        metric = faiss.METRIC_INNER_PRODUCT
        index = faiss.IndexIVFPQ(quantizer, vectors.shape[1], how.lists, how.code_bytes, 8, metric)
        index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1
        index.nprobe = how.probes  # for those who read the file with faiss alone
        index.train(_sample(vectors, max(_TRAIN_A_LIST * how.lists, 64 * LEAST_FOR_PQ)))
        return cls._filled(index, vectors, ids, settings=asdict(how), encoder=encoder)

    def _parameters(self, depth: int) -> Any:  # noqa: ARG002
        return faiss_library().SearchParametersIVF(nprobe=int(self._about["settings"]["probes"]))


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
