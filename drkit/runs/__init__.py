"""Runs: plans of stages, and the only place that knows trainers, ranks and devices."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.runs.cached import CachedGradients
    from drkit.runs.ranking_files import distill, rerank_file
    from drkit.runs.teacher_scores import read_scores

__all__ = ["CachedGradients", "distill", "read_scores", "rerank_file"]

__getattr__, __dir__ = attach(
    __name__,
    {
        "CachedGradients": "cached",
        "distill": "ranking_files",
        "read_scores": "teacher_scores",
        "rerank_file": "ranking_files",
    },
)
