"""Stage: the encoder folder that users load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drkit.encoders.export import export_encoder
from drkit.runs.checkpoints import load_encoder
from drkit.runs.manifest import versions
from drkit.runs.stage import StageRun
from drkit.runs.tokenizers import load_tokenizer


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes a folder for SentenceTransformer and AutoModel: no LM head, no decoder, pooling declared."""
    recipe = stage.recipe
    source = stage.inputs[stage.stage.settings["from"]]
    encoder = load_encoder(source, pooling=recipe.encoder.pooling)
    export_encoder(
        encoder.backbone,
        load_tokenizer(str(source)),
        stage.folder,
        pooling=recipe.encoder.pooling,
        similarity=recipe.similarity,
        query_length=recipe.encoder.query_length,
        passage_length=recipe.encoder.passage_length,
        query_prompt=recipe.encoder.query_prompt,
        passage_prompt=recipe.encoder.passage_prompt,
        provenance={"recipe": recipe.name, "stage": source.name, **versions()},
    )
    return {"parameters": sum(p.numel() for p in encoder.backbone.parameters())}
