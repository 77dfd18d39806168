"""Encoders of a run for searching: from a checkpoint, from the exported folder, or from a model in training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, fields

from drkit.core.processes import local_device
from drkit.encoders.export import export_dual, export_encoder
from drkit.encoders.folder import PASSAGES
from drkit.runs.stage import TextReading
from drkit.search import AnyEncoder, DualEncoder, TextEncoder
from drkit.search.text_encoder import read_encoder
from drkit.train.checkpoints import load_encoder, load_tokenizer

if TYPE_CHECKING:
    from drkit.train.biencoder import BiEncoder


def load_text_encoder(folder: Path, reading: TextReading, *, device: str | None = None) -> AnyEncoder:
    """Load the encoder (or both encoders) of a stage's folder; an exported folder's own settings replace `reading`."""
    device = device or local_device()
    if (folder / "modules.json").exists():
        return read_encoder(folder, device)
    backbone = load_encoder(folder, pooling=reading.pooling).backbone.to(device)
    encoder = encoder_of(backbone, load_tokenizer(str(folder)), reading)
    if not (folder / PASSAGES).is_dir():
        return encoder
    other = load_encoder(folder / PASSAGES, pooling=reading.pooling).backbone.to(device)
    return DualEncoder(encoder, evolve(encoder, model=other))


def encoders_of(module: BiEncoder, tokenizer: Any, reading: TextReading) -> AnyEncoder:
    """Return the text encoder(s) of a bi-encoder, which may be in training."""
    encoder = encoder_of(module.encoder.backbone, tokenizer, reading)
    if module.passage_encoder is None:
        return encoder
    return DualEncoder(encoder, evolve(encoder, model=module.passage_encoder.backbone))


def encoder_of(backbone: Any, tokenizer: Any, reading: TextReading) -> TextEncoder:
    """Return the text encoder of a backbone, which may be in training."""
    return TextEncoder(backbone, tokenizer, **asdict(reading))


def write_encoder(encoder: AnyEncoder, folder: Path, provenance: Mapping[str, Any]) -> int:
    """Write the folder that users load, with one encoder or two; returns the number of parameters."""
    sides = [encoder.queries, encoder.passages] if isinstance(encoder, DualEncoder) else [encoder]
    declared = {field.name: getattr(sides[-1], field.name) for field in fields(TextEncoder)}
    for name in ("model", "tokenizer", "token_budget", "precision"):
        del declared[name]
    declared["query_length"] = sides[0].query_length
    parts = [(side.model, side.tokenizer) for side in sides]
    if isinstance(encoder, DualEncoder):
        export_dual(parts[0], parts[1], folder, provenance=provenance, **declared)
    else:
        export_encoder(*parts[0], folder, provenance=provenance, **declared)
    return sum(p.numel() for model, _ in parts for p in model.parameters())
