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
class ContrastiveConfig:
    """Settings of `ContrastiveLoss`."""

    temperature: float = setting(0.02, gt(0), "scores are divided by it")
    similarity: str = setting("cosine", in_(("cosine", "dot")), "cosine or dot product")
