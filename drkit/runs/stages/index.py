"""Stage: every passage as a vector, and an exact index over them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.data.store import TokenStore
from drkit.data.tables import open_collection
from drkit.runs.retriever import load_text_encoder
from drkit.runs.stage import StageRun
from drkit.search import FlatIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes vectors and index; returns vectors, texts per second, and what searches them."""
    encoder = load_text_encoder(stage.inputs[stage.stage.settings["encoder"]], stage.recipe)
    store = TokenStore.open(stage.inputs["tokens"] / "passages")
    corpus = open_collection(stage.inputs["collection"]).corpus
    with tempfile.TemporaryDirectory(dir=stage.folder.parent) as scratch:
        path = encoder.write_tokens(Path(scratch) / "vectors.npy", _rows(store, stage), len(store))
        index = FlatIndex.build(np.load(path, mmap_mode="r"), corpus.doc_ids)
        index.save(stage.folder)
    return {"vectors": len(index), "dimensions": index.dimension, "engine": type(index.engine).__name__}


def _rows(store: TokenStore, stage: StageRun) -> Iterator[NDArray[np.int32]]:
    for place in range(len(store)):
        if place % 1000 == 0:
            stage.progress.advance(place, len(store), "passages")
        yield store.tokens(place)
