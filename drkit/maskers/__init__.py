"""Maskers: which tokens are hidden from the encoder and from the decoder."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.maskers.config import GeneratorConfig, PmiConfig, QueryAsContextConfig, UniformConfig
    from drkit.maskers.generator import GeneratorMasker, GeneratorReplacer
    from drkit.maskers.pmi import PmiMasker
    from drkit.maskers.query_as_context import QueryAsContextMasker
    from drkit.maskers.uniform import UniformMasker

__all__ = [
    "GeneratorConfig",
    "GeneratorMasker",
    "GeneratorReplacer",
    "PmiConfig",
    "PmiMasker",
    "QueryAsContextConfig",
    "QueryAsContextMasker",
    "UniformConfig",
    "UniformMasker",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "GeneratorConfig": "config",
        "GeneratorMasker": "generator",
        "GeneratorReplacer": "generator",
        "PmiConfig": "config",
        "PmiMasker": "pmi",
        "QueryAsContextConfig": "config",
        "QueryAsContextMasker": "query_as_context",
        "UniformConfig": "config",
        "UniformMasker": "uniform",
    },
)
