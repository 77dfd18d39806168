"""Maskers: which tokens are hidden from the encoder and from the decoder."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.maskers.config import PmiConfig, UniformConfig
    from drkit.maskers.pmi import PmiMasker
    from drkit.maskers.uniform import UniformMasker

__all__ = ["PmiConfig", "PmiMasker", "UniformConfig", "UniformMasker"]

__getattr__, __dir__ = attach(
    __name__,
    {"PmiConfig": "config", "PmiMasker": "pmi", "UniformConfig": "config", "UniformMasker": "uniform"},
)
