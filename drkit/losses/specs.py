"""The specs of the losses that belong to no paper's plugin."""

from __future__ import annotations

from drkit.core.spec import Citation, ComponentSpec, Kind
from drkit.losses.config import (
    ContrastiveConfig,
    InfoNceConfig,
    KlDistillationConfig,
    ListwiseConfig,
    MarginMseConfig,
    MlmLossConfig,
    PairwiseConfig,
)

BERT = Citation(
    key="devlin2019bert",
    title="BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    year=2019,
    url="https://arxiv.org/abs/1810.04805",
)
INFO_NCE = Citation(
    key="oord2018cpc",
    title="Representation Learning with Contrastive Predictive Coding",
    year=2018,
    url="https://arxiv.org/abs/1807.03748",
)
RANKNET = Citation(
    key="burges2005ranknet",
    title="Learning to Rank using Gradient Descent",
    year=2005,
    url="https://doi.org/10.1145/1102351.1102363",
)
LISTNET = Citation(
    key="cao2007listnet",
    title="Learning to Rank: From Pairwise Approach to Listwise Approach",
    year=2007,
    url="https://doi.org/10.1145/1273496.1273513",
)
MARGIN_MSE = Citation(
    key="hofstatter2020marginmse",
    title="Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation",
    year=2020,
    url="https://arxiv.org/abs/2010.02666",
)
SIMLM = Citation(
    key="wang2023simlm",
    title="SimLM: Pre-training with Representation Bottleneck for Dense Passage Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2207.02578",
)
SIMCSE = Citation(
    key="gao2021simcse",
    title="SimCSE: Simple Contrastive Learning of Sentence Embeddings",
    year=2021,
    url="https://arxiv.org/abs/2104.08821",
)

LOSSES = (
    ComponentSpec(
        kind=Kind.LOSS,
        name="mlm",
        target="drkit.losses.mlm:MlmLoss",
        config=MlmLossConfig,
        summary="Cross-entropy over the vocabulary at target positions",
        cite=BERT,
        receives=("token_states",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="contrastive",
        target="drkit.losses.contrastive:ContrastiveLoss",
        config=ContrastiveConfig,
        summary="InfoNCE over in-batch and hard negatives, in up to four directions",
        cite=INFO_NCE,
        receives=("pairs",),
        scope="batch",
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="pairwise",
        target="drkit.losses.pairwise:PairwiseLoss",
        config=PairwiseConfig,
        summary="Softplus of score differences to a query's own negatives",
        cite=RANKNET,
        receives=("pairs",),
        scope="batch",
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="kl-distillation",
        target="drkit.losses.kl_distillation:KlDistillationLoss",
        config=KlDistillationConfig,
        summary="A teacher's distribution over own passages, plus contrastive",
        cite=SIMLM,
        receives=("pairs",),
        requires=("teacher",),
        scope="batch",
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="margin-mse",
        target="drkit.losses.margin_mse:MarginMseLoss",
        config=MarginMseConfig,
        summary="A teacher's margins between positive and own negatives",
        cite=MARGIN_MSE,
        receives=("pairs",),
        requires=("teacher",),
        scope="batch",
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="listwise",
        target="drkit.losses.listwise:ListwiseLoss",
        config=ListwiseConfig,
        summary="Cross-encoder: the positive first among a query's passages",
        cite=LISTNET,
        receives=("groups",),
    ),
    ComponentSpec(
        kind=Kind.LOSS,
        name="info-nce",
        target="drkit.losses.info_nce:InfoNceLoss",
        config=InfoNceConfig,
        summary="Vectors of two views of a text together, those of others apart",
        cite=SIMCSE,
        receives=("bottleneck", "partners"),
        scope="batch",
    ),
)
