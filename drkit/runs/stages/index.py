"""Stage: every passage as a vector, and an index over them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drkit.core.ranks import Shard
from drkit.data.store import TokenStore
from drkit.data.tables import open_collection
from drkit.runs import processes
from drkit.runs.manifest import CHECKPOINTS
from drkit.runs.retriever import load_text_encoder
from drkit.runs.stage import StageRun
from drkit.search import Vectors, build_index, encode_corpus

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VECTORS, _INDEX = "vectors", ".index"


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes the index; returns its size and kind, and the measured recall of an approximate one.

    The vectors are encoded in shards, which all processes share where the stage is a joint one; they are kept until the
    index stands, so that a stage that was cut off goes on.
    """
    joint = stage.stage.joint and processes.count() > 1
    # resolved: in another process the folder is a link to where the first one works, which may not be there yet
    vectors = (stage.folder / CHECKPOINTS).resolve() / _VECTORS
    encoder = load_text_encoder(stage.inputs[stage.stage.settings["encoder"]], stage.recipe)
    encode_corpus(encoder, _rows(stage), vectors, shard=Shard.of_environment() if joint else Shard())
    if joint:
        processes.wait()
        if processes.rank():
            return {}
    kind = stage.stage.settings.get("kind", "flat")
    shutil.rmtree(stage.folder / _INDEX, ignore_errors=True)  # half of it was moved up, where it was cut off there
    index = build_index(Vectors.open(vectors), stage.folder / _INDEX, kind=kind)
    _move_up(stage.folder / _INDEX)
    return {"vectors": len(index), "dimensions": index.dimension, "kind": kind, **index.facts}


def _rows(stage: StageRun) -> Iterator[tuple[str, NDArray[Any]]]:
    store = TokenStore.open(stage.inputs["tokens"] / "passages")
    doc_ids = open_collection(stage.inputs["collection"]).corpus.doc_ids
    for place, doc_id in enumerate(doc_ids):
        if place % 1000 == 0:
            stage.progress.advance(place, len(store), "passages")
        yield doc_id, store.tokens(place)


def _move_up(folder: Path) -> None:
    for path in folder.iterdir():
        path.replace(folder.parent / path.name)
    folder.rmdir()
