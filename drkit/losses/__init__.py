"""Losses: they see vectors or states and targets, never a model, a rank or a chunk."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.losses.config import ContrastiveConfig, MlmLossConfig
    from drkit.losses.contrastive import ContrastiveLoss
    from drkit.losses.mlm import MlmLoss

__all__ = ["ContrastiveConfig", "ContrastiveLoss", "MlmLoss", "MlmLossConfig"]

__getattr__, __dir__ = attach(
    __name__,
    {"ContrastiveConfig": "config", "ContrastiveLoss": "contrastive", "MlmLoss": "mlm", "MlmLossConfig": "config"},
)
