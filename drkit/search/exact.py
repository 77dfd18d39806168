"""The two engines of exact inner-product search: faiss where it is installed, torch otherwise."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROWS = 65_536


class Engine(Protocol):
    """Finds the vectors of largest inner product."""

    name: str

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores f32[Q,count], largest first, and places i64[Q,count] (-1: none) for queries f32[Q,D]."""


class FaissEngine:
    """`IndexFlatIP` over vectors f32[N,D], or read from the file it was written to."""

    name = "faiss"

    def __init__(self, vectors: NDArray[np.float32], file: Path | None = None) -> None:
        import faiss

        if file is not None and file.is_file():
            self.index: Any = faiss.read_index(str(file))
        else:
            self.index = faiss.IndexFlatIP(vectors.shape[1])
            for start in range(0, len(vectors), ROWS):
                self.index.add(np.ascontiguousarray(vectors[start : start + ROWS]))

    def write(self, file: Path) -> None:
        """Write the index in faiss's own format."""
        import faiss

        faiss.write_index(self.index, str(file))

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `Engine.top` says."""
        scores, places = self.index.search(np.ascontiguousarray(queries, dtype=np.float32), count)
        return scores, places


class TorchEngine:
    """Inner products with 65,536 vectors f32[N,D] at a time, on the processor; the vectors may be memory-mapped."""

    name = "torch"

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self._vectors = vectors

    def top(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """As `Engine.top` says."""
        wanted = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32))
        scores = torch.empty(len(wanted), 0)
        places = torch.empty(len(wanted), 0, dtype=torch.long)
        for start in range(0, len(self._vectors), ROWS):
            # a copy: torch takes no memory that is read-only
            rows = torch.from_numpy(np.array(self._vectors[start : start + ROWS], dtype=np.float32))
            best = torch.topk(wanted @ rows.T, min(count, len(rows)), dim=1)
            scores, places = torch.cat([scores, best.values], 1), torch.cat([places, best.indices + start], 1)
            scores, kept = torch.topk(scores, min(count, scores.shape[1]), dim=1)
            places = places.gather(1, kept)
        return scores.numpy(), places.numpy()


def make_engine(vectors: NDArray[np.float32], file: Path | None = None, name: str = "auto") -> Engine:
    """Engine faiss where it is installed, else torch, which is said once; or the engine named `faiss` or `torch`."""
    if name == "auto":
        name = "faiss" if _has_faiss() else "torch"
    return FaissEngine(vectors, file) if name == "faiss" else TorchEngine(vectors)


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
