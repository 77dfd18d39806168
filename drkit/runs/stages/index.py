"""Stage: encode all passages, and build an index over their vectors."""

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
    for path in scratch.iterdir():
        path.replace(stage.folder / path.name)
    scratch.rmdir()
    return {"vectors": len(index), "dimensions": index.dimension, "kind": stage.settings.kind, **index.facts}


def _rows(stage: StageRun[IndexSettings]) -> Iterator[tuple[str, NDArray[Any]]]:
    from drkit.data.corpus import StoredCorpus
    from drkit.data.store import TokenStore

    store = TokenStore.open(stage.inputs["tokens"])
    for index, doc_id in enumerate(StoredCorpus(stage.inputs["passages"]).doc_ids):
        if index % 1000 == 0:
            stage.progress.advance(index, len(store), "passages")
        yield doc_id, store.tokens(index)


INDEX = StageSpec(
    name="index",
    version=1,
    settings=IndexSettings,
    run=run,
    inputs={"encoder": "an encoder's folder", "tokens": "the passages' tokens", "passages": "for their ids"},
    resumable=True,
    joint=True,
)
