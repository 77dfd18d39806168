"""Decoders: small networks that rebuild a text from its bottleneck, and are dropped after pre-training."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.decoders.autoencoder import AutoencoderDecoder
    from drkit.decoders.autoregressive import AutoregressiveDecoder
    from drkit.decoders.autoregressive_block import AutoregressiveBlockDecoder
    from drkit.decoders.bow import BowDecoder, word_distribution
    from drkit.decoders.condenser import CondenserDecoder
    from drkit.decoders.config import (
        AutoregressiveBlockConfig,
        AutoregressiveConfig,
        BowDecoderConfig,
        CondenserConfig,
        EnhancedConfig,
        MlmDecoderConfig,
        NoDecoderConfig,
    )
    from drkit.decoders.enhanced import EnhancedDecoder
    from drkit.decoders.mlm import MlmDecoder
    from drkit.decoders.none import NoDecoder
    from drkit.decoders.replaced_token_detection import ReplacedTokenDetectionDecoder

__all__ = [
    "AutoencoderDecoder",
    "AutoregressiveBlockConfig",
    "AutoregressiveBlockDecoder",
    "AutoregressiveConfig",
    "AutoregressiveDecoder",
    "BowDecoder",
    "BowDecoderConfig",
    "CondenserConfig",
    "CondenserDecoder",
    "EnhancedConfig",
    "EnhancedDecoder",
    "MlmDecoder",
    "MlmDecoderConfig",
    "NoDecoder",
    "NoDecoderConfig",
    "ReplacedTokenDetectionDecoder",
    "word_distribution",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "AutoencoderDecoder": "autoencoder",
        "AutoregressiveBlockConfig": "config",
        "AutoregressiveBlockDecoder": "autoregressive_block",
        "AutoregressiveConfig": "config",
        "AutoregressiveDecoder": "autoregressive",
        "BowDecoder": "bow",
        "BowDecoderConfig": "config",
        "CondenserConfig": "config",
        "CondenserDecoder": "condenser",
        "EnhancedConfig": "config",
        "EnhancedDecoder": "enhanced",
        "MlmDecoder": "mlm",
        "MlmDecoderConfig": "config",
        "NoDecoder": "none",
        "NoDecoderConfig": "config",
        "ReplacedTokenDetectionDecoder": "replaced_token_detection",
        "word_distribution": "bow",
    },
)
