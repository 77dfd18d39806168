"""The specs of the collections: where texts, queries and judgements come from."""

from __future__ import annotations

from drkit.core.spec import Citation, ComponentSpec, Kind
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

COLLECTIONS = (
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
        files=("path",),
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
        files=("path",),
    ),
)
