"""Stage: the encoder folder that users load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.runs.manifest import versions
from drkit.runs.retriever import load_text_encoder, write_encoder
from drkit.runs.stage import StageRun


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes the folder for SentenceTransformer and AutoModel; returns the number of parameters."""
    recipe = stage.recipe
    source = stage.inputs[stage.stage.settings["from"]]
    made_of = {"recipe": recipe.name, "stage": source.name, **versions()}
    return {"parameters": write_encoder(load_text_encoder(source, recipe, device="cpu"), stage.folder, made_of)}
