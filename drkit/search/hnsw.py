"""HNSW graphs (Malkov and Yashunin 2018), by faiss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import asdict, field, frozen
from attrs.validators import ge

from drkit.search.approximate import ApproximateIndex, faiss_library
from drkit.search.ids import DocIds
from drkit.search.index import check_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from drkit.search.shards import Shards


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


class HnswIndex(ApproximateIndex):
    """A graph over whole vectors: fast, all of it in memory or mapped. Scores are exact, hits may be missed."""

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
        """The graph of vectors [N,D]. Built by several threads it differs a little from time to time.

        Raises DrkitError as `FlatIndex.build` does, or MissingExtraError without faiss.
        """
        faiss, how, ids = faiss_library(), settings or Hnsw(), DocIds.of(doc_ids)
        check_vectors(vectors, ids)
        dimension = vectors.shape[1]
        if how.half:
            kind = faiss.ScalarQuantizer.QT_fp16
            index = faiss.IndexHNSWSQ(dimension, kind, how.links, faiss.METRIC_INNER_PRODUCT)
        else:
            index = faiss.IndexHNSWFlat(dimension, how.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = how.construction
        index.hnsw.efSearch = how.effort  # for those who read the file with faiss alone
        return cls._filled(index, vectors, ids, settings=asdict(how), encoder=encoder)

    def _parameters(self, depth: int) -> Any:
        return faiss_library().SearchParametersHNSW(efSearch=max(int(self._about["settings"]["effort"]), depth))
