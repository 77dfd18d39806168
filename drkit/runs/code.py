"""The code of plugins that a stage runs: of the parts in its settings, and of the encoder's pooling and type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drkit.core.files import local_path, read_json
from drkit.core.plugin_code import PluginCode, part_code
from drkit.core.registry import Registry, installed
from drkit.core.spec import Kind, is_stage_output
from drkit.evaluate.names import INITIAL
from drkit.recipe.encoder_settings import EncoderSettings
from drkit.recipe.parts import parts_within
from drkit.recipe.schema import Recipe

# The inputs of a stage that are models; their code is that of the recipe's encoder.
_MODELS = {"start", "encoder", "checkpoint", "generator", "reranker"}


def stage_code(name: str, inputs: Iterable[str], settings: Any, recipe: Recipe, registry: Registry) -> PluginCode:
    """Return the code of plugins that a stage with these inputs and settings runs; empty if all of it is drkit's."""
    found = PluginCode()
    for part in parts_within(settings, registry):
        found |= part_code(part)
    is_model = any(is_stage_output(read) and "/" not in read for read in inputs)  # or may be one
    if name == INITIAL or is_model or any(read.partition("/")[0] in _MODELS for read in inputs):
        found |= encoder_code(recipe.encoder, registry)
        for pooling in recipe.poolings.values():
            found |= part_code(registry.get(Kind.POOLING, pooling.use))
    return found


def encoder_code(encoder: EncoderSettings, registry: Registry) -> PluginCode:
    """Return the code of an encoder's pooling and architecture, as far as they are of plugins."""
    found = part_code(registry.get(Kind.POOLING, encoder.pooling.use))
    name = (encoder.architecture or _model_type(encoder.pretrained)).replace("_", "-")
    table = installed().extensions["architecture"]
    return found | part_code(table.get(name)) if name in table else found


def _model_type(pretrained: str | None) -> str:
    """Return the model type of a folder; empty for a hub id, and for a folder whose configuration lacks it."""
    path = local_path(pretrained) / "config.json" if pretrained else None
    table = read_json(path, "give the folder of a model") if path and path.is_file() else {}
    return str(table.get("model_type") or "") if isinstance(table, dict) else ""
