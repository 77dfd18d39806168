"""Stage: every passage as a vector, and an exact index over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.data.store import TokenStore
from drkit.data.tables import open_collection
from drkit.runs.retriever import load_text_encoder
from drkit.runs.stage import StageRun
from drkit.search import FlatIndex, encode


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes vectors and index; returns vectors, texts per second, and what searches them."""
    encoder = load_text_encoder(stage.inputs[stage.stage.settings["encoder"]], stage.recipe)
    store = TokenStore.open(stage.inputs["tokens"] / "passages")
    corpus = open_collection(stage.inputs["collection"]).corpus
    vectors = encode(
        encoder,
        store,
        stage.folder / "vectors.npy",
        advance=lambda done, total: stage.progress.advance(done, total, "passages"),
    )
    index = FlatIndex.build(vectors, corpus.doc_ids)
    index.save(stage.folder)
    return {"vectors": len(store), "dimensions": vectors.shape[1], "engine": index.engine}
