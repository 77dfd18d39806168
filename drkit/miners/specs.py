"""The specs of the miners: sources of negatives, and filters (those that receive `candidates`) to stand behind them."""

from __future__ import annotations

from drkit.core.spec import Citation, ComponentSpec, Kind
from drkit.miners.config import (
    Bm25Config,
    CrossEncoderFilterConfig,
    DenseConfig,
    GivenConfig,
    MarginConfig,
    MaxScoreConfig,
    RandomConfig,
    RanksConfig,
    RefreshConfig,
    RunFileConfig,
    SameTextConfig,
)

BM25 = Citation(
    key="robertson2009bm25",
    title="The Probabilistic Relevance Framework: BM25 and Beyond",
    year=2009,
    url="https://doi.org/10.1561/1500000019",
)
ANCE = Citation(
    key="xiong2021ance",
    title="Approximate Nearest Neighbor Negative Contrastive Learning for Dense Text Retrieval",
    year=2021,
    url="https://arxiv.org/abs/2007.00808",
)
STAR = Citation(
    key="zhan2021adore",
    title="Optimizing Dense Retrieval Model Training with Hard Negatives",
    year=2021,
    url="https://arxiv.org/abs/2104.08051",
)
ROCKETQA = Citation(
    key="qu2021rocketqa",
    title="RocketQA: An Optimized Training Approach to Dense Passage Retrieval for Open-Domain Question Answering",
    year=2021,
    url="https://arxiv.org/abs/2010.08191",
)
NV_RETRIEVER = Citation(
    key="moreira2024nvretriever",
    title="NV-Retriever: Improving Text Embedding Models with Effective Hard-Negative Mining",
    year=2024,
    url="https://arxiv.org/abs/2407.15831",
)

SOURCES = (
    ComponentSpec(
        kind=Kind.MINER,
        name="bm25",
        target="drkit.miners.bm25:Bm25Miner",
        config=Bm25Config,
        summary="The best-ranked unjudged passages of BM25",
        cite=BM25,
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="dense",
        target="drkit.miners.dense:DenseMiner",
        config=DenseConfig,
        summary="The best-ranked unjudged passages of a trained retriever",
        cite=STAR,
        requires=("retriever",),
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="given",
        target="drkit.miners.given:GivenMiner",
        config=GivenConfig,
        summary="The negatives that the collection's own training file carries",
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="random",
        target="drkit.miners.random:RandomMiner",
        config=RandomConfig,
        summary="Passages drawn at random from the collection",
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="refresh",
        target="drkit.miners.dense:DenseMiner",
        config=RefreshConfig,
        summary="As dense, again every few epochs with the model in training",
        cite=ANCE,
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="run-file",
        target="drkit.miners.run_file:RunFileMiner",
        config=RunFileConfig,
        summary="The best-ranked unjudged passages of any TREC run file",
        shorthand="path",
        files=("path",),
    ),
)
FILTERS = (
    ComponentSpec(
        kind=Kind.MINER,
        name="cross-encoder-filter",
        target="drkit.miners.texts:CrossEncoderFilter",
        config=CrossEncoderFilterConfig,
        summary="Filter: drops what a cross-encoder takes for an answer",
        cite=ROCKETQA,
        receives=("candidates",),
        shorthand="model",
        files=("model",),
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="margin",
        target="drkit.miners.filters:MarginFilter",
        config=MarginConfig,
        summary="Filter: drops what scores too close to the positive",
        cite=NV_RETRIEVER,
        receives=("candidates",),
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="max-score",
        target="drkit.miners.filters:MaxScoreFilter",
        config=MaxScoreConfig,
        summary="Filter: drops what scores above a number",
        receives=("candidates",),
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="ranks",
        target="drkit.miners.filters:RanksFilter",
        config=RanksConfig,
        summary="Filter: keeps ranks A to B",
        receives=("candidates",),
        shorthand="keep",
    ),
    ComponentSpec(
        kind=Kind.MINER,
        name="same-text",
        target="drkit.miners.texts:SameTextFilter",
        config=SameTextConfig,
        summary="Filter: drops copies of a positive under another id",
        receives=("candidates",),
    ),
)
MINERS = (*SOURCES, *FILTERS)
