"""Losses: they see vectors or states and targets, never a model, a rank or a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.losses.bag_of_words import BagOfWordsLoss as BagOfWordsLoss
    from drkit.losses.bow_reconstruction import BowReconstructionLoss as BowReconstructionLoss
    from drkit.losses.contrastive import ContrastiveLoss as ContrastiveLoss
    from drkit.losses.info_nce import InfoNceLoss as InfoNceLoss
    from drkit.losses.js_contrastive import JsContrastiveLoss as JsContrastiveLoss
    from drkit.losses.js_contrastive import js_divergences as js_divergences
    from drkit.losses.kl_distillation import KlDistillationLoss as KlDistillationLoss
    from drkit.losses.listwise import ListwiseLoss as ListwiseLoss
    from drkit.losses.margin_mse import MarginMseLoss as MarginMseLoss
    from drkit.losses.matryoshka import MatryoshkaLoss as MatryoshkaLoss
    from drkit.losses.mlm import MlmLoss as MlmLoss
    from drkit.losses.pairwise import PairwiseLoss as PairwiseLoss
    from drkit.losses.rtd import EncoderRtdLoss as EncoderRtdLoss
    from drkit.losses.rtd import RtdLoss as RtdLoss
    from drkit.losses.span_contrastive import SpanContrastiveLoss as SpanContrastiveLoss
    from drkit.losses.specs import BagOfWordsConfig as BagOfWordsConfig
    from drkit.losses.specs import BowReconstructionConfig as BowReconstructionConfig
    from drkit.losses.specs import ContrastiveConfig as ContrastiveConfig
    from drkit.losses.specs import InfoNceConfig as InfoNceConfig
    from drkit.losses.specs import JsContrastiveConfig as JsContrastiveConfig
    from drkit.losses.specs import KlDistillationConfig as KlDistillationConfig
    from drkit.losses.specs import ListwiseConfig as ListwiseConfig
    from drkit.losses.specs import MarginMseConfig as MarginMseConfig
    from drkit.losses.specs import MatryoshkaConfig as MatryoshkaConfig
    from drkit.losses.specs import MlmLossConfig as MlmLossConfig
    from drkit.losses.specs import PairwiseConfig as PairwiseConfig
    from drkit.losses.specs import RtdConfig as RtdConfig
    from drkit.losses.specs import SpanContrastiveConfig as SpanContrastiveConfig

lazy_exports(__name__)
