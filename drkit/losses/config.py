"""Settings of the losses; no torch here."""

from __future__ import annotations

from attrs import frozen
from attrs.validators import gt, in_

from drkit.core.settings import setting


@frozen
class MlmLossConfig:
    """`MlmLoss` has no settings."""


@frozen
class ContrastiveConfig:
    """Settings of `ContrastiveLoss`."""

    temperature: float = setting(0.02, gt(0), "scores are divided by it")
    similarity: str = setting("cosine", in_(("cosine", "dot")), "cosine or dot product")
