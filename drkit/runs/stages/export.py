"""Stage: the encoder folder that users load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from drkit.runs.stage import StageRun, StageSpec, TextReading


@frozen
class ExportSettings:
    """How the exported encoder reads texts."""

    reading: TextReading


def run(stage: StageRun[ExportSettings]) -> Mapping[str, Any]:
    """Write the folder for SentenceTransformer and AutoModel; returns its origin and number of parameters."""
    from drkit.runs.manifest import versions
    from drkit.runs.retriever import load_text_encoder, write_encoder

    source = stage.inputs["checkpoint"]
    encoder = load_text_encoder(source, stage.settings.reading, device="cpu")
    parameters = write_encoder(encoder, stage.folder, {"stage": source.name, **versions()})
    return {"from": source.name, "parameters": parameters}


EXPORT = StageSpec(
    name="export",
    version=1,
    settings=ExportSettings,
    run=run,
    inputs={"checkpoint": "the last retriever's checkpoint"},
)
