"""The decoders: their settings and specs; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from attrs.validators import and_, gt, in_, le, lt

from drkit.core.citations import BERT, CPDAE, LLARA, RETROMAE
from drkit.core.settings import at_least, setting
from drkit.core.spec import ComponentSpec, Kind, NoSettings


@frozen
class MlmDecoderConfig:
    """Settings of `MlmDecoder`: a shallow transformer over the bottleneck and the masked text."""

    layers: int = setting(2, at_least(1, 512), "transformer layers")
    init: str = setting("random", in_(("random", "encoder-tail")), "random, or a copy of the encoder's last layers")
    projection: bool = setting(False, None, "project the bottleneck linearly before the decoder reads it")

    @property
    def requires(self) -> Mapping[str, None]:
        """Layers that it can copy, if it starts from the encoder's."""
        return {"encoder-layers": None} if self.init == "encoder-tail" else {}


@frozen
class EnhancedConfig:
    """Settings of `EnhancedDecoder`: each row sees the vector and a random part of the text (RetroMAE section 3.3)."""

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
    """Settings of `BowDecoder`: predicts the words of a text from its vector alone (CPDAE section 3.1.2)."""

    prior: float = setting(0.01, and_(gt(0), lt(1)), "initial probability of every word")


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
        name="enhanced",
        target="drkit.decoders.enhanced:EnhancedDecoder",
        config=EnhancedConfig,
        summary="One layer, two-stream attention, a sampled context for each token",
        cite=RETROMAE,
        receives=("rows",),
        provides=("token_states",),
    ),
    ComponentSpec(
        kind=Kind.DECODER,
        name="bow",
        target="drkit.decoders.bow:BowDecoder",
        config=BowDecoderConfig,
        summary="Predicts which words occur, from the bottleneck alone: an MLP",
        cite=CPDAE,
        provides=("vocab_logits", "words"),
        trained_by="bow-reconstruction",
    ),
    ComponentSpec(
        kind=Kind.DECODER,
        name="lm-head",
        target="drkit.decoders.bow:LmHeadDecoder",
        config=NoSettings,
        summary="Predicts which words occur, by the LM head on the bottleneck",
        cite=LLARA,
        provides=("vocab_logits", "words"),
        trained_by="bag-of-tokens",
    ),
)
