"""Stages: encode passages and index their vectors; take the exported retriever's index; index words for BM25."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from drkit.runs.stage import StageRun, StageSpec, TextReading

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VECTORS, _INDEX = "vectors", ".index"


@frozen
class IndexSettings:
    """How passages are encoded, and the kind of index: flat, hnsw, ivf-pq."""

    kind: str
    reading: TextReading


@frozen
class Bm25Settings:
    """None: BM25 has the defaults of `Bm25Retriever`."""


def run(stage: StageRun[IndexSettings]) -> Mapping[str, Any]:
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
    encode_corpus(encoder, _rows(stage), vectors, shard=Shard.from_environment() if joint else Shard())
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


def _rows(stage: StageRun[IndexSettings]) -> Iterator[tuple[str, NDArray[Any]]]:
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


def take(stage: StageRun[ChosenIndexSettings]) -> Mapping[str, Any]:
    """Link or copy the index of the exported retriever; returns which one, and what its manifest says."""
    from drkit.core.files import link_or_copy
    from drkit.runs.manifest import FILE, read_manifest
    from drkit.runs.stages.choice import chosen_input

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
    run=run,
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
    run=take,
    inputs={"index/*": "a retriever's index", "choice": "which retriever is exported, if there are several"},
)
