"""Decoders: small networks that rebuild a text from its bottleneck, and are dropped after pre-training."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.decoders.bow import BowDecoder, word_distribution
    from drkit.decoders.config import BowDecoderConfig, EnhancedConfig, MlmDecoderConfig
    from drkit.decoders.enhanced import EnhancedDecoder
    from drkit.decoders.mlm import MlmDecoder

__all__ = [
    "BowDecoder",
    "BowDecoderConfig",
    "EnhancedConfig",
    "EnhancedDecoder",
    "MlmDecoder",
    "MlmDecoderConfig",
    "word_distribution",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "BowDecoder": "bow",
        "BowDecoderConfig": "config",
        "EnhancedConfig": "config",
        "EnhancedDecoder": "enhanced",
        "MlmDecoder": "mlm",
        "MlmDecoderConfig": "config",
        "word_distribution": "bow",
    },
)
