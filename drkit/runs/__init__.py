"""Runs: plans of stages, and the only place that knows trainers, ranks and devices."""

from typing import TYPE_CHECKING

from drkit.core.lazy import lazy_exports

if TYPE_CHECKING:
    from drkit.runs.finetuning.teacher_scores import read_scores as read_scores
    from drkit.runs.training.cached import CachedGradients as CachedGradients
    from drkit.runs.training.ranked_groups import RankedGroups as RankedGroups

lazy_exports(__name__)
