"""Losses: they see vectors or states and targets, never a model, a rank or a chunk."""

from typing import TYPE_CHECKING

from drkit.core.lazy import attach

if TYPE_CHECKING:
    from drkit.losses.bag_of_words import BagOfWordsLoss
    from drkit.losses.bow_reconstruction import BowReconstructionLoss
    from drkit.losses.config import (
        BagOfWordsConfig,
        BowReconstructionConfig,
        ContrastiveConfig,
        InfoNceConfig,
        JsContrastiveConfig,
        MlmLossConfig,
    )
    from drkit.losses.contrastive import ContrastiveLoss
    from drkit.losses.info_nce import InfoNceLoss
    from drkit.losses.js_contrastive import JsContrastiveLoss, js_divergences
    from drkit.losses.mlm import MlmLoss

__all__ = [
    "BagOfWordsConfig",
    "BagOfWordsLoss",
    "BowReconstructionConfig",
    "BowReconstructionLoss",
    "ContrastiveConfig",
    "ContrastiveLoss",
    "InfoNceConfig",
    "InfoNceLoss",
    "JsContrastiveConfig",
    "JsContrastiveLoss",
    "MlmLoss",
    "MlmLossConfig",
    "js_divergences",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "BagOfWordsConfig": "config",
        "BagOfWordsLoss": "bag_of_words",
        "BowReconstructionConfig": "config",
        "BowReconstructionLoss": "bow_reconstruction",
        "ContrastiveConfig": "config",
        "ContrastiveLoss": "contrastive",
        "InfoNceConfig": "config",
        "InfoNceLoss": "info_nce",
        "JsContrastiveConfig": "config",
        "JsContrastiveLoss": "js_contrastive",
        "MlmLoss": "mlm",
        "MlmLossConfig": "config",
        "js_divergences": "js_contrastive",
    },
)
