"""Whether a model is one that drkit can pre-train: asked once, when it is wrapped, so that no step fails later."""

from __future__ import annotations

from typing import Any

from drkit.encoders.architectures import GELU, Architecture
from drkit.errors import DrkitError


def check_fit(model: Any, where: Architecture) -> None:
    """Raise DrkitError, saying what is missing and what would fit, where `model` lacks a piece that `where` names."""
    name = type(model).__name__
    if getattr(model.config, "is_decoder", False):
        raise DrkitError(
            f"this {name} reads from left to right (is_decoder = true in its config.json); a masked auto-encoder needs "
            f"an encoder that sees both sides: set it to false, or take another checkpoint"
        )
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        raise DrkitError(
            f"a {name} has no language-model head; load it with MaskedLmEncoder.from_pretrained(folder), or wrap the "
            f"masked LM of its architecture (transformers' AutoModelForMaskedLM)"
        )
    missing = [*_absent(model, where.transform, ""), *_absent(model.base_model, _in_backbone(where), "the backbone's ")]
    if missing:
        raise DrkitError(
            f"this {name} calls itself {where.model_type!r} but is built otherwise: it has no {', no '.join(missing)}; "
            f"take transformers' own masked LM of that architecture"
        )


def _in_backbone(where: Architecture) -> tuple[str, ...]:
    return tuple(path for path in (where.embeddings, where.layers, where.positions, where.final_norm) if path)


def _absent(module: Any, paths: tuple[str, ...], whose: str) -> list[str]:
    return [f"{whose}{path!r}" for path in paths if path != GELU and not _has(module, path)]


def _has(module: Any, path: str) -> bool:
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
