"""Decoders: small networks that rebuild a text from its bottleneck, and are dropped after pre-training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.decoders.bow import BowDecoder as BowDecoder
    from drkit.decoders.bow import LmHeadDecoder as LmHeadDecoder
    from drkit.decoders.bow import word_distribution as word_distribution
    from drkit.decoders.bow import word_mask as word_mask
    from drkit.decoders.enhanced import EnhancedDecoder as EnhancedDecoder
    from drkit.decoders.layers import PostLnLayer as PostLnLayer
    from drkit.decoders.layers import init_weights as init_weights
    from drkit.decoders.layers import sizes_of as sizes_of
    from drkit.decoders.layers import states_at as states_at
    from drkit.decoders.layers import uncomputed_states as uncomputed_states
    from drkit.decoders.layers import with_bottleneck as with_bottleneck
    from drkit.decoders.mlm import MlmDecoder as MlmDecoder
    from drkit.decoders.specs import BowDecoderConfig as BowDecoderConfig
    from drkit.decoders.specs import EnhancedConfig as EnhancedConfig
    from drkit.decoders.specs import MlmDecoderConfig as MlmDecoderConfig

lazy_exports(__name__)
