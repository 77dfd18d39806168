"""What approximate indexes by faiss share: ids, files, and a search that leaves out what was not found.

All rank by inner product. How much of the exact ranking they find is measured when they are built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from pyarrow import ArrowException

from drkit.core.files import replacing_folder
from drkit.errors import DrkitError, MissingExtraError
from drkit.search.hits import Hits
from drkit.search.ids import DocIds
from drkit.search.index import check_search, score_places
from drkit.search.index_files import ABOUT, FAISS, IDS, read_about, write_about
from drkit.search.shards import float32_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH = 1024
Kind = TypeVar("Kind", bound="ApproximateIndex")


class ApproximateIndex:
    """An index of faiss, the ids of its vectors, and what index.json says; made by a kind's `build`, or by `load`."""

    kind: ClassVar[str]

    def __init__(self, index: Any, ids: DocIds, about: dict[str, Any]) -> None:
        self._index, self._ids, self._about = index, ids, about
        self.encoder, self.dimension = about.get("encoder"), int(about["dimension"])

    @classmethod
    def load(cls: type[Kind], folder: str | Path) -> Kind:
        """The index that `save` wrote, memory-mapped.

        Raises DrkitError where files are missing, broken or do not fit each other.
        """
        place, library = Path(folder), faiss_library()
        about = read_about(place, cls.kind, (FAISS, IDS))
        mapped = getattr(library, "IO_FLAG_MMAP_IFC", library.IO_FLAG_MMAP)
        try:
            index, ids = library.read_index(str(place / FAISS), mapped), DocIds.read([place / IDS])
        except (OSError, RuntimeError, ArrowException) as error:
            raise DrkitError(f"cannot read the index in {place}: {error}; build it again") from error
        if not len(ids) == index.ntotal == about.get("count"):
            raise DrkitError(f"{place}: {len(ids)} ids for {index.ntotal} vectors; build the index again")
        return cls(index, ids, about)

    @classmethod
    def _filled(
        cls: type[Kind], index: Any, vectors: Any, ids: DocIds, *, settings: Any, encoder: Mapping[str, Any] | None
    ) -> Kind:
        """With the vectors added, block by block."""
        for _, block in float32_blocks(vectors):
            if not index.is_trained:  # float16 storage has nothing to learn, but wants to be asked
                index.train(block[:1])
            index.add(block)
        count, dimension = vectors.shape
        about = {"kind": cls.kind, "count": count, "dimension": dimension, "settings": settings, "encoder": encoder}
        return cls(index, ids, about)

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, queries: NDArray[np.float32], depth: int) -> list[Hits]:
        """The `depth` documents found for each query f32[Q,D], fewer where the search reaches no more.

        Raises DrkitError where the queries have another dimension, or `depth` is no positive number.
        """
        return list(self.stream(queries, depth))

    def stream(self, queries: NDArray[np.float32], depth: int) -> Iterator[Hits]:
        """`search`, the hits of one query at a time; ties stand by place; what faiss leaves empty is no hit."""
        check_search(queries, depth, self.dimension)
        count, parameters = min(depth, len(self)), self._parameters(depth)
        for start in range(0, len(queries), _BATCH):
            part = np.ascontiguousarray(queries[start : start + _BATCH], dtype=np.float32)
            for scores, places in zip(*self._index.search(part, count, params=parameters), strict=True):
                scores, places = scores[places >= 0], places[places >= 0]
                best = np.lexsort((places, -scores))
                yield Hits(tuple(self._ids.take(places[best])), tuple(scores[best].tolist()))

    def _parameters(self, depth: int) -> Any:
        """How hard faiss searches for so many documents."""
        raise NotImplementedError

    def score(self, queries: NDArray[np.float32], doc_ids: Sequence[Sequence[str]]) -> list[list[float]]:
        """Products of each query f32[Q,D] with the stored vectors of documents of its own; NaN for an unknown id.

        Raises DrkitError where there are more or fewer lists of ids than queries.
        """
        if hasattr(self._index, "make_direct_map"):  # lists: where each vector stands, made once
            self._index.make_direct_map()
        return score_places(queries, [self._ids.find(names) for names in doc_ids], self._index.reconstruct_batch)

    def save(self, folder: str | Path) -> Path:
        """Write index.faiss, ids.arrow and index.json, atomically."""
        with replacing_folder(Path(folder), ABOUT) as temporary:
            faiss_library().write_index(self._index, str(temporary / FAISS))
            self._ids.write(temporary / IDS)
            write_about(temporary, self._about)
        return Path(folder)

    def describe(self, **facts: Any) -> None:
        """Add facts, as the measured recall, to what `save` writes into index.json."""
        self._about["facts"] = facts

    @property
    def facts(self) -> dict[str, Any]:
        """What is worth telling of it beside its size: the recall that was measured when it was built."""
        return dict(self._about.get("facts", {}))


def faiss_library() -> Any:
    """The module `faiss`; MissingExtraError where it is not installed."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("an approximate index", "faiss", "cpu") from None
    return faiss
