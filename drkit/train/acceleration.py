"""How the transformer layers of a module in training are computed: compiled or not, and with which attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import is_flash_attn_2_available

from drkit.decoders.layers import PostLnLayer
from drkit.encoders.architectures import find_architecture
from drkit.errors import DrkitError
from drkit.recipe.schema import AUTO, FLASH, Training

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


@contextmanager
def attending(module: nn.Module, implementation: str) -> Iterator[None]:
    """Let the encoders of a module compute attention with this implementation in a block; `auto` changes nothing.

    Only in a block, because probes read texts in float32, which FlashAttention cannot.
    """
    models = [] if implementation == AUTO else _backbones(module)
    before = [model.config._attn_implementation for model in models]
    for model in models:
        model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        for model, name in zip(models, before, strict=True):
            model.set_attn_implementation(name)


def check_attention(module: nn.Module, implementation: str) -> None:
    """Raise DrkitError if an encoder of the module has no such implementation."""
    for model in _backbones(module):
        where = find_architecture(model.config.model_type)
        if where and where.attention == "eager" and implementation not in (AUTO, "eager"):
            raise DrkitError(
                f"encoders of the architecture {model.config.model_type!r} have only the attention 'eager' in "
                f"transformers, got attn_implementation = {implementation!r}; set it to 'auto'"
            )


def check_device(training: Training) -> None:
    """Raise DrkitError if this machine cannot compute the attention of a training, or not in its precision."""
    if training.attn_implementation != FLASH:
        return
    missing = []
    if not torch.cuda.is_available():
        missing.append("torch sees no GPU")
    if not is_flash_attn_2_available():
        missing.append("the package flash-attn is not installed")
    if not training.bf16 and not training.arguments.get("fp16"):
        missing.append("it computes in bfloat16 or float16 (set bf16 = true)")
    if missing:
        raise DrkitError(f"attn_implementation = {FLASH!r} is not possible: {', '.join(missing)}; or set it to 'auto'")


def _backbones(module: nn.Module) -> list[PreTrainedModel]:
    """Return the models of transformers in a module, without their heads."""
    return [part for part in module.modules() if isinstance(part, PreTrainedModel) and part.base_model is part]
