"""Compile the transformer layers of a module in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from drkit.decoders.layers import PostLnLayer
from drkit.encoders.architectures import find_architecture

# Arguments of transformers that would compile a whole module, which torch cannot: it builds frozen objects inside.
COMPILING = ("torch_compile", "torch_compile_backend", "torch_compile_mode")


def compile_options(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `torch.compile` is called with for transformers' arguments of a training; None: do not compile.

    Shapes are dynamic from the start, so that a resumed training compiles the same code as an uninterrupted one.
    """
    on, backend, mode = (arguments.get(name) for name in COMPILING)
    if not (on or backend or mode):
        return None
    options = {"backend": backend or "inductor", "dynamic": True}
    return options if mode is None else {**options, "mode": mode}


def compile_layers(module: nn.Module, options: Mapping[str, Any]) -> int:
    """Compile the layers of all encoders and decoders of a module in place, and return their number.

    The names of weights stay as they are. Layers of the same class share the compiled code. Forgets what was compiled
    before in this process: torch runs code uncompiled after several versions of it.
    """
    torch.compiler.reset()
    layers = transformer_layers(module)
    for layer in layers:
        layer.compile(**options)
    return len(layers)


def transformer_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all encoders of a supported architecture in a module, and those of drkit's decoders."""
    found: list[nn.Module] = [part for part in module.modules() if isinstance(part, PostLnLayer)]
    for model in _backbones(module):
        if where := find_architecture(model.config.model_type):
            found += model.get_submodule(where.layers).children()
    return found


def _backbones(module: nn.Module) -> list[PreTrainedModel]:
    """Return the models of transformers in a module, without their heads."""
    return [part for part in module.modules() if isinstance(part, PreTrainedModel) and part.base_model is part]
