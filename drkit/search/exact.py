"""The engines of exact inner-product search: faiss or torch, on the processor or on a GPU.

Each goes through the vectors block by block and keeps the best so far: vectors in files are read, never held.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from drkit.errors import DrkitError
from drkit.search.shards import Shards, float32_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 65_536
ENGINES = ("auto", "faiss", "torch")
_SCORES_AT_ONCE = 2**24
_FAISS_GPU_MOST = 2048


class Engine(Protocol):
    """Finds the vectors of largest inner product."""

    name: str

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores f32[Q,count], largest first, and places i64[Q,count] (-1: none) for queries f32[Q,D]."""


class FaissEngine:
    """faiss's brute-force search over vectors [N,D], an array or `Shards`; on a GPU where faiss has one."""

    name = "faiss"

    def __init__(self, vectors: Any) -> None:
        import faiss

        self._vectors = vectors
        # None in the build for processors. The one for GPUs takes 2048 neighbours at most.
        self._gpu: Any = faiss.StandardGpuResources() if _faiss_gpus() else None

    def write(self, file: Path) -> None:
        """Write an `IndexFlatIP` of the vectors in faiss's own format; all of them pass through memory."""
        import faiss

        index = faiss.IndexFlatIP(self._vectors.shape[1])
        for _, block in float32_blocks(self._vectors):
            index.add(block)
        faiss.write_index(index, str(file))

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `Engine.top` says."""
        wanted = np.ascontiguousarray(queries, dtype=np.float32)
        best = Best(len(wanted), count)
        for start, block in float32_blocks(self._vectors):
            scores, places = self._search(wanted, block, min(count, len(block)))
            best.add(torch.from_numpy(scores), torch.from_numpy(places) + start)
        return best.arrays()

    def _search(self, queries: NDArray[np.float32], block: NDArray[np.float32], count: int) -> Any:
        import faiss

        if self._gpu is not None and count <= _FAISS_GPU_MOST:
            return faiss.knn_gpu(self._gpu, queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)
        return faiss.knn(queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)


class TorchEngine:
    """Matrix products over vectors [N,D], an array or `Shards`, 65,536 at a time; on a GPU where there is one.

    device: `cpu`, `cuda`, or None for whichever there is. Vectors in memory are brought to a GPU once and stay there.
    """

    name = "torch"

    def __init__(self, vectors: Any, device: str | None = None) -> None:
        self._vectors = vectors
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._held: list[tuple[int, Tensor]] = []

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `Engine.top` says."""
        wanted = torch.from_numpy(np.array(queries, dtype=np.float32)).to(self._device)
        best = Best(len(wanted), count)
        with whole_float32():
            for start, rows in self._rows():
                best.add(*_products(wanted, rows, min(count, len(rows)), start))
        return best.arrays()

    def _rows(self) -> Iterator[tuple[int, Tensor]]:
        if self._device.type == "cpu" or isinstance(self._vectors, Shards):
            return self._read()
        if not self._held:
            self._held = list(self._read())
        return iter(self._held)

    def _read(self) -> Iterator[tuple[int, Tensor]]:
        for start, block in float32_blocks(self._vectors):
            for at in range(0, len(block), ROWS):
                # a copy: torch takes no memory that is read-only
                yield start + at, torch.from_numpy(np.array(block[at : at + ROWS])).to(self._device)


def _products(queries: Tensor, rows: Tensor, count: int, start: int) -> tuple[Tensor, Tensor]:
    """The best `count` rows of each query, with so many queries at once that their scores take 64 MB."""
    size = max(1, _SCORES_AT_ONCE // len(rows))
    parts = [torch.topk(queries[at : at + size] @ rows.T, count, dim=1) for at in range(0, len(queries), size)]
    scores = torch.cat([part.values for part in parts])
    return scores, torch.cat([part.indices for part in parts]) + start


class Best:
    """The best `count` of each query so far, while blocks of candidates come in."""

    def __init__(self, queries: int, count: int) -> None:
        self._count = count
        self._scores = torch.empty(queries, 0)
        self._places = torch.empty(queries, 0, dtype=torch.long)

    def add(self, scores: Tensor, places: Tensor) -> None:
        """Candidates of one block: scores f32[Q,n], best first, and places i64[Q,n]."""
        if not self._scores.shape[1]:
            self._scores, self._places = scores, places
            return
        scores, places = torch.cat([self._scores, scores], 1), torch.cat([self._places, places], 1)
        self._scores, kept = torch.topk(scores, min(self._count, scores.shape[1]), dim=1)
        self._places = places.gather(1, kept)

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores f32[Q,<=count], best first, and places."""
        return self._scores.cpu().numpy(), self._places.cpu().numpy()


def make_engine(vectors: Any, name: str = "auto") -> Engine:
    """The engine named `faiss` or `torch`; `auto`: on a GPU if one of them can, else faiss, else torch, said once."""
    if name not in ENGINES:
        raise DrkitError(f"no search engine {name!r}; there are {', '.join(ENGINES)}")
    if name == "auto":
        torch_alone = torch.cuda.is_available() and not _faiss_gpus()
        name = "torch" if torch_alone or not _has_faiss() else "faiss"
    return FaissEngine(vectors) if name == "faiss" else TorchEngine(vectors)


@contextmanager
def whole_float32() -> Iterator[None]:
    """Matrix products of all 24 bits, whatever the program has allowed elsewhere."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _faiss_gpus() -> int:
    try:
        import faiss
    except ImportError:
        return 0
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


@cache
def _has_faiss() -> bool:
    try:
        import faiss  # noqa: F401
    except ImportError:
        logging.getLogger("drkit.search").warning(
            "faiss is not installed: exact search by torch, with the same results; pip install 'drkit[cpu]' is faster"
        )
        return False
    return True
