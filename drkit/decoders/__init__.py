"""Decoders: small networks that rebuild a text from its bottleneck, and are dropped after pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.decoders.autoregressive import AutoregressiveBlockDecoder as AutoregressiveBlockDecoder
    from drkit.decoders.autoregressive import AutoregressiveDecoder as AutoregressiveDecoder
    from drkit.decoders.bow import BowDecoder as BowDecoder
    from drkit.decoders.bow import word_distribution as word_distribution
    from drkit.decoders.condenser import CondenserDecoder as CondenserDecoder
    from drkit.decoders.enhanced import EnhancedDecoder as EnhancedDecoder
    from drkit.decoders.mlm import AutoencoderDecoder as AutoencoderDecoder
    from drkit.decoders.mlm import MlmDecoder as MlmDecoder
    from drkit.decoders.mlm import NoDecoder as NoDecoder
    from drkit.decoders.replaced_token_detection import ReplacedTokenDetectionDecoder as ReplacedTokenDetectionDecoder
    from drkit.decoders.specs import AutoregressiveBlockConfig as AutoregressiveBlockConfig
    from drkit.decoders.specs import AutoregressiveConfig as AutoregressiveConfig
    from drkit.decoders.specs import BowDecoderConfig as BowDecoderConfig
    from drkit.decoders.specs import CondenserConfig as CondenserConfig
    from drkit.decoders.specs import EnhancedConfig as EnhancedConfig
    from drkit.decoders.specs import MlmDecoderConfig as MlmDecoderConfig
    from drkit.decoders.specs import NoDecoderConfig as NoDecoderConfig

lazy_exports(__name__)
