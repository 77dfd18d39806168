"""Encoders of a run for searching: a training checkpoint or the exported folder, either way one `TextEncoder`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drkit.core.ranks import own_device
from drkit.core.recipe import Recipe
from drkit.errors import DrkitError
from drkit.runs.checkpoints import load_encoder
from drkit.runs.manifest import read_manifest
from drkit.runs.tokenizers import load_tokenizer
from drkit.search import Retriever, TextEncoder, open_index


def load_text_encoder(folder: Path, recipe: Recipe, *, device: str | None = None) -> TextEncoder:
    """The encoder of a stage's folder, with the recipe's pooling, similarity, lengths and prompts."""
    device = device or own_device()
    if (folder / "modules.json").exists():
        return TextEncoder.load(folder, device)
    backbone = load_encoder(folder, pooling=recipe.encoder.pooling).backbone.to(device)
    return encoder_of(backbone, load_tokenizer(str(folder)), recipe)


def encoder_of(backbone: Any, tokenizer: Any, recipe: Recipe) -> TextEncoder:
    """A backbone, maybe one in training, as a run searches with it: the recipe's pooling, lengths and prompts."""
    return TextEncoder(
        backbone,
        tokenizer,
        pooling=recipe.encoder.pooling,
        similarity=recipe.similarity,
        query_length=recipe.encoder.query_length,
        passage_length=recipe.encoder.passage_length,
        query_prompt=recipe.encoder.query_prompt,
        passage_prompt=recipe.encoder.passage_prompt,
    )


def open_run(run: Path) -> Retriever:
    """The searchable retriever of a finished run. Raises DrkitError where the run has none, or not yet."""
    if not run.is_dir():
        raise DrkitError(f"no run at {run}; `drkit compose` makes one")
    for stage in ("collection", "encoder", "index"):
        if read_manifest(run / stage) is None:
            raise DrkitError(
                f"{run} has no finished stage {stage!r}, so it cannot be searched; "
                f"`drkit run {run}` goes on where it was cut off"
            )
    return Retriever(TextEncoder.load(run / "encoder"), open_index(run / "index"))
