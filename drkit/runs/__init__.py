"""Runs: plans of stages, and the only place that knows trainers, ranks and devices."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.runs.cached import CachedGradients

__all__ = ["CachedGradients"]

__getattr__, __dir__ = attach(__name__, {"CachedGradients": "cached"})
