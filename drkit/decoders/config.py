"""Settings of the decoders; no torch here."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import ge, in_

from drkit.core.settings import setting


@frozen
class MlmDecoderConfig:
    """Settings of `MlmDecoder`."""

    layers: int = setting(2, ge(1), "transformer layers")
    init: str = setting("random", in_(("random", "encoder-tail")), "random, or a copy of the encoder's last layers")
    projection: bool = setting(False, None, "project the bottleneck linearly before the decoder reads it")


@frozen
class EnhancedConfig:
    """Settings of `EnhancedDecoder` (RetroMAE section 3.3)."""

    projection: bool = setting(False, None, "project the bottleneck linearly before the decoder reads it")
