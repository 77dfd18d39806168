"""Stages around a retriever: mine its negatives, export its encoder, index its vectors; and index words for BM25."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.recipe.schema import Choice
from drkit.runs.stage import StageRun, StageSpec, TextReading, from_recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray


@frozen
class ExportSettings:
    """How the exported encoder reads texts."""

    reading: TextReading


def export_encoder(stage: StageRun[ExportSettings]) -> Mapping[str, Any]:
    """Write the folder for SentenceTransformer and AutoModel; returns its origin and number of parameters."""
    from drkit.runs.manifest import versions
    from drkit.runs.retriever import load_text_encoder, write_encoder
    from drkit.runs.stages.evaluation import chosen_input

    source = chosen_input(stage.inputs, "checkpoint")
    encoder = load_text_encoder(source, stage.settings.reading, device="cpu")
    parameters = write_encoder(encoder, stage.folder, {"stage": source.name, **versions()})
    return {"from": source.name, "parameters": parameters}


EXPORT = StageSpec(
    name="export",
    version=2,
    settings=ExportSettings,
    run=export_encoder,
    inputs={"checkpoint/*": "a retriever's checkpoint", "choice": "which one is exported, if there are several"},
)


_VECTORS, _INDEX = "vectors", ".index"


@frozen
class IndexSettings:
    """How passages are encoded, and the kind of index: flat, hnsw, ivf-pq."""

    kind: str
    reading: TextReading


@frozen
class Bm25Settings:
    """None: BM25 has the defaults of `Bm25Retriever`."""


def index_vectors(stage: StageRun[IndexSettings]) -> Mapping[str, Any]:
    """Write the index; returns its size and kind, and the measured recall of an approximate one.

    All processes encode shards of the vectors, which are kept until the index is written, so that an interrupted stage
    can resume.
    """
    from drkit.core import processes
    from drkit.core.files import CHECKPOINTS
    from drkit.core.processes import Shard
    from drkit.runs.retriever import load_text_encoder
    from drkit.search import Vectors, build_index, encode_corpus
    from drkit.search.index import LOW_RECALL

    joint = processes.count() > 1
    # Resolved: in other processes the folder is a link to the first one's folder, which may not exist yet.
    vectors = (stage.folder / CHECKPOINTS).resolve() / _VECTORS
    encoder = load_text_encoder(stage.inputs["encoder"], stage.settings.reading)
    encode_corpus(encoder, _passage_tokens(stage), vectors, shard=Shard.from_environment() if joint else Shard())
    if joint:
        processes.barrier()
        if processes.rank():
            return {}
    scratch = stage.folder / _INDEX
    shutil.rmtree(scratch, ignore_errors=True)  # an interrupted attempt may have moved only some of its files
    index = build_index(Vectors.open(vectors), scratch, kind=stage.settings.kind)
    if index.facts.get("recall@10", 1.0) < LOW_RECALL:
        stage.progress.note(
            f"the {stage.settings.kind} index finds {index.facts['recall@10']:.1%} of the 10 nearest passages; "
            f"--set evaluation.index=flat finds all"
        )
    for path in scratch.iterdir():
        path.replace(stage.folder / path.name)
    scratch.rmdir()
    return {"vectors": len(index), "dimensions": index.dimension, "kind": stage.settings.kind, **index.facts}


def index_words(stage: StageRun[Bm25Settings]) -> Mapping[str, Any]:
    """Write BM25's index of all passages; returns its size."""
    from drkit.data.corpus import StoredCorpus
    from drkit.search import Bm25Retriever

    retriever = Bm25Retriever().index(StoredCorpus(stage.inputs["passages"]))
    retriever.save(stage.folder)
    return {"passages": len(retriever)}


def _passage_tokens(stage: StageRun[IndexSettings]) -> Iterator[tuple[str, NDArray[Any]]]:
    from drkit.data.corpus import StoredCorpus
    from drkit.data.store import TokenStore

    store = TokenStore.open(stage.inputs["tokens"])
    for index, doc_id in enumerate(StoredCorpus(stage.inputs["passages"]).doc_ids):
        if index % 1000 == 0:
            stage.progress.advance(index, len(store), "passages")
        yield doc_id, store.tokens(index)


@frozen
class ChosenIndexSettings:
    """Nothing: the index is taken as it is."""


def take_index(stage: StageRun[ChosenIndexSettings]) -> Mapping[str, Any]:
    """Link or copy the index of the exported retriever; returns which one, and what its manifest says."""
    from drkit.core.files import link_or_copy
    from drkit.runs.manifest import FILE, read_manifest
    from drkit.runs.stages.evaluation import chosen_input

    source = chosen_input(stage.inputs, "index")
    shutil.copytree(
        source, stage.folder, ignore=shutil.ignore_patterns(FILE), copy_function=link_or_copy, dirs_exist_ok=True
    )
    manifest = read_manifest(source)
    return {"from": source.name, **(manifest.metrics if manifest else {})}


INDEX = StageSpec(
    name="index",
    version=1,
    settings=IndexSettings,
    run=index_vectors,
    inputs={"encoder": "an encoder's folder", "tokens": "the passages' tokens", "passages": "for their ids"},
    resumable=True,
    joint=True,
)
BM25 = StageSpec(
    name="bm25",
    version=1,
    settings=Bm25Settings,
    run=index_words,
    inputs={"passages": "the passages to index"},
)
CHOSEN_INDEX = StageSpec(
    name="chosen-index",
    version=1,
    settings=ChosenIndexSettings,
    run=take_index,
    inputs={"index/*": "a retriever's index", "choice": "which retriever is exported, if there are several"},
)


@frozen
class NegativeSettings:
    """A chain of miners: a source, then filters; reading: how the retriever reads texts, None without one."""

    miners: tuple[Choice, ...]
    reading: TextReading | None
    exclude_self: bool = from_recipe("evaluation.exclude_self")
    seed: int = from_recipe("seed")


def mine_negatives(stage: StageRun[NegativeSettings]) -> Mapping[str, Any]:
    """Write `negatives.arrow`; returns counts, dropped candidates by reason, and hashes of the weights."""
    from drkit.core.processes import local_device
    from drkit.core.types import BuildContext
    from drkit.data.corpus import collection_of
    from drkit.miners.chain import build_chain, mining_requests, refresh_settings, weight_hashes, write_negatives
    from drkit.runs.retriever import load_text_encoder
    from drkit.search import FlatIndex, Reranker, Retriever

    settings, inputs = stage.settings, stage.inputs
    collection = collection_of(inputs)
    retriever = None
    if "index" in inputs and settings.reading is not None:
        retriever = Retriever(load_text_encoder(inputs["encoder"], settings.reading), FlatIndex.load(inputs["index"]))
    context = BuildContext(
        retriever=retriever,
        reranker=Reranker.load(inputs["reranker"], local_device()) if "reranker" in inputs else None,
        negatives=collection.negatives("train"),
        seed=settings.seed,
    )
    if refresh_settings(settings.miners) and retriever is None:
        stage.progress.note("the model in training mines all negatives, including those of the first epoch")
        return write_negatives((), collection.corpus, stage.folder)
    miner = build_chain(settings.miners, stage.registry, context)
    miner.index(collection.corpus)
    total = len(collection.positives("train"))
    requests = mining_requests(collection, exclude_self=settings.exclude_self)
    mined = _reporting(miner.mine(requests, miner.depth), total, stage)
    counts = write_negatives(mined, collection.corpus, stage.folder)
    if counts["queries_without"]:
        stage.progress.note(_describe_queries_without(counts))
    return {**counts, "weights": weight_hashes(context)}


def _describe_queries_without(counts: Mapping[str, Any]) -> str:
    dropped = ", ".join(f"{why} {count:,}" for why, count in counts["dropped"].items()) or "none"
    return f"{counts['queries_without']:,} of {counts['queries']:,} queries have no hard negative; dropped: {dropped}"


def _reporting(mined: Iterator[Any], total: int, stage: StageRun[NegativeSettings]) -> Iterator[Any]:
    for done, item in enumerate(mined, start=1):
        stage.progress.advance(done, total, "queries")
        yield item


NEGATIVES = StageSpec(
    name="negatives",
    version=1,
    settings=NegativeSettings,
    run=mine_negatives,
    inputs={
        "passages": "the passages to mine",
        "train": "training queries, judgements and given negatives",
        "encoder": "the previous retriever",
        "index": "its index",
        "reranker": "a cross-encoder, for filters",
    },
)
