"""Runs: plan the stages of a recipe, and execute them."""

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.train.adapters import CachedGradients as CachedGradients
    from drkit.train.adapters import RankedGroups as RankedGroups
    from drkit.train.teacher import read_scores as read_scores

lazy_exports(__name__)
