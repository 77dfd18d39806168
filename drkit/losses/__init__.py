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
        KlDistillationConfig,
        ListwiseConfig,
        MarginMseConfig,
        MlmLossConfig,
        PairwiseConfig,
        ReplacedLmConfig,
        RtdConfig,
        SpanContrastiveConfig,
    )
    from drkit.losses.contrastive import ContrastiveLoss
    from drkit.losses.info_nce import InfoNceLoss
    from drkit.losses.js_contrastive import JsContrastiveLoss, js_divergences
    from drkit.losses.kl_distillation import KlDistillationLoss
    from drkit.losses.listwise import ListwiseLoss
    from drkit.losses.margin_mse import MarginMseLoss
    from drkit.losses.mlm import MlmLoss
    from drkit.losses.pairwise import PairwiseLoss
    from drkit.losses.replaced_lm import ReplacedLmLoss
    from drkit.losses.rtd import EncoderRtdLoss, RtdLoss
    from drkit.losses.span_contrastive import SpanContrastiveLoss

__all__ = [
    "BagOfWordsConfig",
    "BagOfWordsLoss",
    "BowReconstructionConfig",
    "BowReconstructionLoss",
    "ContrastiveConfig",
    "ContrastiveLoss",
    "EncoderRtdLoss",
    "InfoNceConfig",
    "InfoNceLoss",
    "JsContrastiveConfig",
    "JsContrastiveLoss",
    "KlDistillationConfig",
    "KlDistillationLoss",
    "ListwiseConfig",
    "ListwiseLoss",
    "MarginMseConfig",
    "MarginMseLoss",
    "MlmLoss",
    "MlmLossConfig",
    "PairwiseConfig",
    "PairwiseLoss",
    "ReplacedLmConfig",
    "ReplacedLmLoss",
    "RtdConfig",
    "RtdLoss",
    "SpanContrastiveConfig",
    "SpanContrastiveLoss",
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
        "EncoderRtdLoss": "rtd",
        "InfoNceConfig": "config",
        "InfoNceLoss": "info_nce",
        "JsContrastiveConfig": "config",
        "JsContrastiveLoss": "js_contrastive",
        "KlDistillationConfig": "config",
        "KlDistillationLoss": "kl_distillation",
        "ListwiseConfig": "config",
        "ListwiseLoss": "listwise",
        "MarginMseConfig": "config",
        "MarginMseLoss": "margin_mse",
        "MlmLoss": "mlm",
        "MlmLossConfig": "config",
        "PairwiseConfig": "config",
        "PairwiseLoss": "pairwise",
        "ReplacedLmConfig": "config",
        "ReplacedLmLoss": "replaced_lm",
        "RtdConfig": "config",
        "RtdLoss": "rtd",
        "SpanContrastiveConfig": "config",
        "SpanContrastiveLoss": "span_contrastive",
        "js_divergences": "js_contrastive",
    },
)
