"""Settings of all decoders, and specs of those that drkit itself provides; imports no torch."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, gt, in_, le, lt, optional

from drkit.core.citations import BERT
from drkit.core.settings import at_least, setting
from drkit.core.spec import ComponentSpec, Kind


@frozen
class MlmDecoderConfig:
    """Settings of `MlmDecoder`."""

    layers: int = setting(2, at_least(1, 512), "transformer layers")
    init: str = setting("random", in_(("random", "encoder-tail")), "random, or a copy of the encoder's last layers")
    projection: bool = setting(False, None, "project the bottleneck linearly before the decoder reads it")


@frozen
class EnhancedConfig:
    """Settings of `EnhancedDecoder` (RetroMAE section 3.3)."""

    targets: float = setting(
        1.0, and_(gt(0), le(1)), "share of a text's positions rebuilt per step; below 1: drawn at random, and faster"
    )
    query: str = setting(
        "position",
        in_(("position", "embedded")),
        "queries: bottleneck plus position embedding (RetroMAE), or the embedding layer applied to it (DupMAE)",
    )
    projection: bool = setting(False, None, "project the bottleneck linearly before the decoder reads it")

    @property
    def target_share(self) -> float:
        """Share of the positions that is rebuilt."""
        return self.targets


@frozen
class BowDecoderConfig:
    """Settings of `BowDecoder` (CPDAE section 3.1.2)."""

    prior: float = setting(0.01, and_(gt(0), lt(1)), "initial probability of every word")


@frozen
class NoDecoderConfig:
    """Settings of `NoDecoder`: none."""


@frozen
class CondenserConfig:
    """Settings of `CondenserDecoder` (Condenser)."""

    layers: int = setting(2, at_least(1, 512), "transformer layers")
    skip_from: int | None = setting(
        None,
        optional(at_least(0)),
        "encoder layer whose token states it reads; 0: the embeddings; none: the middle one",
    )


@frozen
class AutoregressiveConfig:
    """Settings of `AutoregressiveDecoder` (SEED)."""

    layers: int = setting(3, at_least(1, 512), "transformer layers")
    window: int = setting(
        2, at_least(0), "tokens a position sees, itself included, besides the bottleneck; 0: all up to it"
    )
    end_token: bool = setting(False, None, "whether the text's last token ([SEP]) is a target too")


@frozen
class AutoregressiveBlockConfig:
    """Settings of `AutoregressiveBlockDecoder`."""

    window: int = setting(
        3, at_least(0), "tokens a position sees, itself included, besides the bottleneck; 0: all up to it"
    )
    end_token: bool = setting(True, None, "whether the text's last token ([SEP]) is a target too")


DECODERS = (
    ComponentSpec(
        kind=Kind.DECODER,
        name="mlm",
        target="drkit.decoders.mlm:MlmDecoder",
        config=MlmDecoderConfig,
        summary="n transformer layers on the bottleneck and the masked text",
        cite=BERT,
        receives=("view",),
        provides=("token_states",),
    ),
    ComponentSpec(
        kind=Kind.DECODER,
        name="none",
        target="drkit.decoders.mlm:NoDecoder",
        config=NoDecoderConfig,
        summary="No decoder: only the encoder's own loss, a baseline",
        trained_by="none",
    ),
)
