"""The parts that belong to no paper: a plugin like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.data.config import (
    BeirConfig,
    HfConfig,
    IrdsConfig,
    JsonlConfig,
    PairsConfig,
    PydocsConfig,
    TevatronConfig,
    TrecConfig,
)
from drkit.decoders.config import MlmDecoderConfig, NoDecoderConfig
from drkit.losses.config import (
    ContrastiveConfig,
    InfoNceConfig,
    KlDistillationConfig,
    ListwiseConfig,
    MarginMseConfig,
    MlmLossConfig,
    PairwiseConfig,
)
from drkit.maskers.config import UniformConfig
from drkit.miners.specs import MINERS
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

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
BEIR = Citation(
    key="thakur2021beir",
    title="BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation of Information Retrieval Models",
    year=2021,
    url="https://arxiv.org/abs/2104.08663",
)
IR_DATASETS = Citation(
    key="macavaney2021irds",
    title="Simplified Data Wrangling with ir_datasets",
    year=2021,
    url="https://arxiv.org/abs/2103.02280",
)

TEVATRON = Citation(
    key="gao2023tevatron",
    title="Tevatron: An Efficient and Flexible Toolkit for Neural Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2203.05765",
)
SBERT = Citation(
    key="reimers2019sbert",
    title="Sentence-BERT: Sentence Embeddings using Siamese BERT-Networks",
    year=2019,
    url="https://arxiv.org/abs/1908.10084",
)
HF_DATASETS = Citation(
    key="lhoest2021datasets",
    title="Datasets: A Community Library for Natural Language Processing",
    year=2021,
    url="https://arxiv.org/abs/2109.02846",
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Maskers, decoders, losses, miners and collections that drkit itself brings."""
    return [
        ComponentSpec(
            kind=Kind.MASKER,
            name="uniform",
            target="drkit.maskers.uniform:UniformMasker",
            config=UniformConfig,
            summary="Whole words at random, independent or nested views",
            cite=BERT,
            provides=("view", "rows"),
        ),
        ComponentSpec(
            kind=Kind.DECODER,
            name="mlm",
            target="drkit.decoders.mlm:MlmDecoder",
            config=MlmDecoderConfig,
            summary="n transformer layers on the bottleneck and the masked text",
            cite=BERT,
            needs=("view",),
            provides=("token_states",),
        ),
        ComponentSpec(
            kind=Kind.DECODER,
            name="none",
            target="drkit.decoders.none:NoDecoder",
            config=NoDecoderConfig,
            summary="No decoder: the encoder's own loss alone, a baseline",
            trained_by="none",
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="mlm",
            target="drkit.losses.mlm:MlmLoss",
            config=MlmLossConfig,
            summary="Cross-entropy over the vocabulary at target positions",
            cite=BERT,
            needs=("token_states",),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="contrastive",
            target="drkit.losses.contrastive:ContrastiveLoss",
            config=ContrastiveConfig,
            summary="InfoNCE over in-batch and hard negatives, in up to four directions",
            cite=INFO_NCE,
            needs=("pairs",),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="pairwise",
            target="drkit.losses.pairwise:PairwiseLoss",
            config=PairwiseConfig,
            summary="Softplus of score differences to a query's own negatives",
            cite=RANKNET,
            needs=("pairs",),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="kl-distillation",
            target="drkit.losses.kl_distillation:KlDistillationLoss",
            config=KlDistillationConfig,
            summary="A teacher's distribution over own passages, plus contrastive",
            cite=SIMLM,
            needs=("pairs", "teacher"),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="margin-mse",
            target="drkit.losses.margin_mse:MarginMseLoss",
            config=MarginMseConfig,
            summary="A teacher's margins between positive and own negatives",
            cite=MARGIN_MSE,
            needs=("pairs", "teacher"),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="listwise",
            target="drkit.losses.listwise:ListwiseLoss",
            config=ListwiseConfig,
            summary="Cross-encoder: the positive first among a query's passages",
            cite=LISTNET,
            needs=("groups",),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="info-nce",
            target="drkit.losses.info_nce:InfoNceLoss",
            config=InfoNceConfig,
            summary="Vectors of two views of a text together, those of others apart",
            cite=SIMCSE,
            needs=("bottleneck", "partners"),
        ),
        *MINERS,
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="pydocs",
            target="drkit.data.pydocs:PydocsCollection",
            config=PydocsConfig,
            summary="Docstrings of the installed Python packages: find the function",
            provides=("texts", "queries", "judgements"),
        ),
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="beir",
            target="drkit.data.beir:BeirCollection",
            config=BeirConfig,
            summary="A folder in the BEIR layout: corpus, queries, qrels",
            cite=BEIR,
            provides=("texts", "queries", "judgements"),
            shorthand="path",
        ),
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="irds",
            target="drkit.data.irds:IrdsCollection",
            config=IrdsConfig,
            summary="Any data set of ir_datasets, by its id",
            cite=IR_DATASETS,
            provides=("texts", "queries", "judgements"),
            shorthand="dataset",
        ),
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="tevatron",
            target="drkit.data.tevatron:TevatronCollection",
            config=TevatronConfig,
            summary="Tevatron's training files: queries with their passages",
            cite=TEVATRON,
            provides=("texts", "queries", "judgements"),
            shorthand="path",
        ),
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="pairs",
            target="drkit.data.pairs:PairsCollection",
            config=PairsConfig,
            summary="Files of (query, passage, negatives) as texts; tables or JSON",
            cite=SBERT,
            provides=("texts", "queries", "judgements"),
            shorthand="path",
        ),
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="trec",
            target="drkit.data.trec:TrecCollection",
            config=TrecConfig,
            summary="A corpus file, TREC topics and judgements by split",
            provides=("texts", "queries", "judgements"),
            shorthand="path",
        ),
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="hf",
            target="drkit.data.hf:HfCollection",
            config=HfConfig,
            summary="A Hugging Face data set, by folder or id",
            cite=HF_DATASETS,
            provides=("texts", "queries", "judgements"),
            shorthand="path",
        ),
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="jsonl",
            target="drkit.data.jsonl:JsonlCollection",
            config=JsonlConfig,
            summary="Texts alone, a JSON object or table row each: pre-training only",
            provides=("texts",),
            shorthand="path",
        ),
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """The recipe that `drkit compose` starts from when no paper is named."""
    folder = files("drkit") / "recipes"
    return {"default": folder / "default.toml", "quick": folder / "quick.toml"}


@hookimpl
def drkit_pipelines() -> Mapping[str, Traversable]:
    """How papers fine-tune: each can follow any pre-training."""
    folder = files("drkit") / "recipes" / "pipelines"
    names = ("ance", "dpr", "iterative", "low-resource", "three-stage", "two-stage")
    return {name: folder / f"{name}.toml" for name in names}
