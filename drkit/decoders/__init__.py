"""Decoders: small networks that rebuild a text from its bottleneck, and are dropped after pre-training."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.decoders.config import EnhancedConfig, MlmDecoderConfig
    from drkit.decoders.enhanced import EnhancedDecoder
    from drkit.decoders.mlm import MlmDecoder

__all__ = ["EnhancedConfig", "EnhancedDecoder", "MlmDecoder", "MlmDecoderConfig"]

__getattr__, __dir__ = attach(
    __name__,
    {"EnhancedConfig": "config", "EnhancedDecoder": "enhanced", "MlmDecoder": "mlm", "MlmDecoderConfig": "config"},
)
