"""Settings of the losses; no torch here."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import and_, gt, in_, le

from drkit.core.settings import setting


@frozen
class MlmLossConfig:
    """Settings of `MlmLoss`."""

    targets: float = setting(1.0, and_(gt(0), le(1)), "share of the target positions that is scored, evenly spread")


@frozen
class ReplacedLmConfig:
    """Settings of `ReplacedLmLoss`."""

    targets: float = setting(1.0, and_(gt(0), le(1)), "share of the target positions that is scored, evenly spread")


@frozen
class RtdConfig:
    """Settings of `RtdLoss` and `EncoderRtdLoss`: none."""


@frozen
class ContrastiveConfig:
    """Settings of `ContrastiveLoss`."""

    temperature: float = setting(0.02, gt(0), "scores are divided by it")
    similarity: str = setting("cosine", in_(("cosine", "dot")), "cosine or dot product")


@frozen
class BowReconstructionConfig:
    """Settings of `BowReconstructionLoss` (CPDAE section 3.2.1)."""

    idf: bool = setting(False, None, "weight every word by its inverse document frequency")

    @property
    def needs(self) -> tuple[str, ...]:
        """Document frequencies, where words are weighted by them."""
        return ("idf",) if self.idf else ()


@frozen
class JsContrastiveConfig:
    """Settings of `JsContrastiveLoss` (CPDAE section 3.2.2)."""

    reduction: str = setting("sum", in_(("sum", "mean")), "over the rows of the batch: sum, as in the paper, or mean")


@frozen
class InfoNceConfig:
    """Settings of `InfoNceLoss`."""

    temperature: float = setting(0.05, gt(0), "scores are divided by it")
    similarity: str = setting("cosine", in_(("cosine", "dot")), "cosine or dot product")
    reduction: str = setting("mean", in_(("mean", "sum")), "over the rows of the batch: mean or sum")


@frozen
class BagOfWordsConfig:
    """Settings of `BagOfWordsLoss`: none."""


@frozen
class SpanContrastiveConfig:
    """Settings of `SpanContrastiveLoss`: none."""
