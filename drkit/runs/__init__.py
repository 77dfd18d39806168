"""Runs: plans of stages, and the only place that knows trainers, ranks and devices."""

from typing import TYPE_CHECKING

from drkit.core.lazy import lazy_exports

if TYPE_CHECKING:
    from drkit.train.adapters import CachedGradients as CachedGradients
    from drkit.train.adapters import RankedGroups as RankedGroups
    from drkit.train.teacher import read_scores as read_scores

lazy_exports(__name__)
