"""Search engines of flat indexes: faiss and torch find the vectors with the largest inner products, block by block."""

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
from drkit.search.vectors import Shards, float32_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENGINES = ("auto", "faiss", "torch")
ROWS = 65_536
_SCORES_AT_ONCE = 2**24
_FAISS_GPU_MAX = 2048


class Engine(Protocol):
    """Finds the vectors with the largest inner products: reads them block by block and keeps the best so far."""

    name: str

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores f32[Q,count], best first, and positions i64[Q,count] (-1: none) for queries f32[Q,D]."""


class FaissEngine:
    """Brute-force search by faiss over vectors [N,D], an array or `Shards`; on a GPU if faiss supports one."""

    name = "faiss"

    def __init__(self, vectors: Any) -> None:
        import faiss

        self._vectors = vectors
        # The CPU build has no GPU resources. The GPU build returns at most 2048 neighbours.
        self._gpu: Any = faiss.StandardGpuResources() if _faiss_gpus() else None

    def write(self, file: Path) -> None:
        """Write an `IndexFlatIP` of the vectors in faiss's format; holds all of them in memory."""
        import faiss

        index = faiss.IndexFlatIP(self._vectors.shape[1])
        for _, block in float32_blocks(self._vectors):
            index.add(block)
        faiss.write_index(index, str(file))

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the top hits; see `Engine.top`."""
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        best = Best(len(queries), count)
        for start, block in float32_blocks(self._vectors):
            scores, positions = self._search(queries, block, min(count, len(block)))
            best.add(torch.from_numpy(scores), torch.from_numpy(positions) + start)
        return best.arrays()

    def _search(self, queries: NDArray[np.float32], block: NDArray[np.float32], count: int) -> Any:
        import faiss

        if self._gpu is not None and count <= _FAISS_GPU_MAX:
            return faiss.knn_gpu(self._gpu, queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)
        return faiss.knn(queries, block, count, metric=faiss.METRIC_INNER_PRODUCT)


class TorchEngine:
    """Matrix products over vectors [N,D], an array or `Shards`, 65,536 rows at a time.

    device: `cpu`, `cuda`, or None for a GPU if available. Vectors in memory are copied to a GPU once and kept there.
    """

    name = "torch"

    def __init__(self, vectors: Any, device: str | None = None) -> None:
        self._vectors = vectors
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._on_gpu: list[tuple[int, Tensor]] = []

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the top hits; see `Engine.top`."""
        on_device = torch.from_numpy(np.array(queries, dtype=np.float32)).to(self._device)
        best = Best(len(on_device), count)
        with full_float32():
            for start, rows in self._rows():
                best.add(*_products(on_device, rows, min(count, len(rows)), start))
        return best.arrays()

    def _rows(self) -> Iterator[tuple[int, Tensor]]:
        if self._device.type == "cpu" or isinstance(self._vectors, Shards):
            return self._read()
        if not self._on_gpu:
            self._on_gpu = list(self._read())
        return iter(self._on_gpu)

    def _read(self) -> Iterator[tuple[int, Tensor]]:
        for start, block in float32_blocks(self._vectors):
            for offset in range(0, len(block), ROWS):
                # a copy: torch does not accept read-only memory
                yield start + offset, torch.from_numpy(np.array(block[offset : offset + ROWS])).to(self._device)


def _products(queries: Tensor, rows: Tensor, count: int, start: int) -> tuple[Tensor, Tensor]:
    """Return the best `count` rows of each query, with as many queries at once as fit 64 MB of scores."""
    size = max(1, _SCORES_AT_ONCE // len(rows))
    parts = [torch.topk(queries[i : i + size] @ rows.T, count, dim=1) for i in range(0, len(queries), size)]
    scores = torch.cat([part.values for part in parts])
    return scores, torch.cat([part.indices for part in parts]) + start


class Best:
    """The best `count` candidates of each query so far, updated block by block."""

    def __init__(self, queries: int, count: int) -> None:
        self._count = count
        self._scores = torch.empty(queries, 0)
        self._positions = torch.empty(queries, 0, dtype=torch.long)

    def add(self, scores: Tensor, positions: Tensor) -> None:
        """Add the candidates of one block: scores f32[Q,n], best first, and positions i64[Q,n]."""
        if not self._scores.shape[1]:
            self._scores, self._positions = scores, positions
            return
        scores, positions = torch.cat([self._scores, scores], 1), torch.cat([self._positions, positions], 1)
        self._scores, kept = torch.topk(scores, min(self._count, scores.shape[1]), dim=1)
        self._positions = positions.gather(1, kept)

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return scores f32[Q,<=count], best first, and positions i64[Q,<=count]."""
        return self._scores.cpu().numpy(), self._positions.cpu().numpy()


def make_engine(vectors: Any, name: str = "auto") -> Engine:
    """Return the engine named `faiss` or `torch`; `auto`: whichever can use a GPU, else faiss, else torch.

    Raises DrkitError for any other name.
    """
    if name not in ENGINES:
        raise DrkitError(f"unknown search engine {name!r}; use one of: {', '.join(ENGINES)}")
    if name == "auto":
        only_torch_on_gpu = torch.cuda.is_available() and not _faiss_gpus()
        name = "torch" if only_torch_on_gpu or not _has_faiss() else "faiss"
    return FaissEngine(vectors) if name == "faiss" else TorchEngine(vectors)


@contextmanager
def full_float32() -> Iterator[None]:
    """Compute matrix products in full float32 precision, whatever the program allows elsewhere."""
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
            "faiss is not installed: exact search uses torch, with the same results; "
            "pip install 'drkit[cpu]' makes it faster"
        )
        return False
    return True
