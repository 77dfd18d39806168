"""Losses: they see vectors or states and targets, never a model, a rank or a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drkit.core import lazy_exports

if TYPE_CHECKING:
    from drkit.losses.bag_of_words import BagOfTokensLoss as BagOfTokensLoss
    from drkit.losses.bag_of_words import BowReconstructionLoss as BowReconstructionLoss
    from drkit.losses.candidates import products as products
    from drkit.losses.contrastive import ContrastiveLoss as ContrastiveLoss
    from drkit.losses.distillation import KlDistillationLoss as KlDistillationLoss
    from drkit.losses.distillation import MarginMseLoss as MarginMseLoss
    from drkit.losses.flops import FlopsLoss as FlopsLoss
    from drkit.losses.guided import GistLoss as GistLoss
    from drkit.losses.hardness import HardnessLoss as HardnessLoss
    from drkit.losses.matryoshka import MatryoshkaLoss as MatryoshkaLoss
    from drkit.losses.per_vector import PerVectorLoss as PerVectorLoss
    from drkit.losses.ranking import ListwiseLoss as ListwiseLoss
    from drkit.losses.ranking import PairwiseLoss as PairwiseLoss
    from drkit.losses.self_contrastive import InfoNceLoss as InfoNceLoss
    from drkit.losses.self_contrastive import check_rows as check_rows
    from drkit.losses.self_contrastive import find_partner as find_partner
    from drkit.losses.specs import BowReconstructionConfig as BowReconstructionConfig
    from drkit.losses.specs import ContrastiveConfig as ContrastiveConfig
    from drkit.losses.specs import FlopsConfig as FlopsConfig
    from drkit.losses.specs import GistConfig as GistConfig
    from drkit.losses.specs import HardnessConfig as HardnessConfig
    from drkit.losses.specs import InfoNceConfig as InfoNceConfig
    from drkit.losses.specs import KlDistillationConfig as KlDistillationConfig
    from drkit.losses.specs import MarginMseConfig as MarginMseConfig
    from drkit.losses.specs import MatryoshkaConfig as MatryoshkaConfig
    from drkit.losses.specs import MlmLossConfig as MlmLossConfig
    from drkit.losses.specs import PairwiseConfig as PairwiseConfig
    from drkit.losses.specs import PerVectorConfig as PerVectorConfig
    from drkit.losses.specs import TextVectorLossConfig as TextVectorLossConfig
    from drkit.losses.specs import VectorLossConfig as VectorLossConfig
    from drkit.losses.tokens import MaskedDiffusionLoss as MaskedDiffusionLoss
    from drkit.losses.tokens import MlmLoss as MlmLoss
    from drkit.losses.tokens import MntpLoss as MntpLoss
    from drkit.losses.vectors import TextVectorCosineLoss as TextVectorCosineLoss
    from drkit.losses.vectors import TextVectorMseLoss as TextVectorMseLoss
    from drkit.losses.vectors import TextVectorRelationLoss as TextVectorRelationLoss
    from drkit.losses.vectors import VectorCosineLoss as VectorCosineLoss
    from drkit.losses.vectors import VectorMseLoss as VectorMseLoss
    from drkit.losses.vectors import VectorRelationLoss as VectorRelationLoss

lazy_exports(__name__)
