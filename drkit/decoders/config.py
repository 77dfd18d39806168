"""Settings of the decoders; no torch here."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, ge, gt, in_, le, lt

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

    targets: float = setting(
        1.0, and_(gt(0), le(1)), "share of a text's positions rebuilt in a step; below 1: drawn anew, and faster"
    )
    query: str = setting(
        "position",
        in_(("position", "embedded")),
        "queries: bottleneck plus position embedding (RetroMAE), or the embedding layer applied to it (DupMAE)",
    )
    projection: bool = setting(False, None, "project the bottleneck linearly before the decoder reads it")


@frozen
class BowDecoderConfig:
    """Settings of `BowDecoder` (CPDAE section 3.1.2)."""

    prior: float = setting(0.01, and_(gt(0), lt(1)), "probability of every word at the start")
