"""Maskers: which tokens of a text are hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.maskers.diffusion import DiffusionMasker as DiffusionMasker
    from drkit.maskers.pmi import PmiMasker as PmiMasker
    from drkit.maskers.specs import DiffusionConfig as DiffusionConfig
    from drkit.maskers.specs import PmiConfig as PmiConfig
    from drkit.maskers.specs import UniformConfig as UniformConfig
    from drkit.maskers.specs import ratio_setting as ratio_setting
    from drkit.maskers.specs import unit_setting as unit_setting
    from drkit.maskers.uniform import UniformMasker as UniformMasker
    from drkit.maskers.views import replaced_targets as replaced_targets

lazy_exports(__name__)
