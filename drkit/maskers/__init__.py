"""Maskers: which tokens are hidden from the encoder and from the decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.maskers.generator import GeneratorMasker as GeneratorMasker
    from drkit.maskers.generator import GeneratorReplacer as GeneratorReplacer
    from drkit.maskers.pmi import PmiMasker as PmiMasker
    from drkit.maskers.query_as_context import QueryAsContextMasker as QueryAsContextMasker
    from drkit.maskers.specs import GeneratorConfig as GeneratorConfig
    from drkit.maskers.specs import PmiConfig as PmiConfig
    from drkit.maskers.specs import QueryAsContextConfig as QueryAsContextConfig
    from drkit.maskers.specs import UniformConfig as UniformConfig
    from drkit.maskers.uniform import UniformMasker as UniformMasker

lazy_exports(__name__)
