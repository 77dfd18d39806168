"""Recipes as TOML, complete, so that they read back equal; and plain data as strictly valid JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import tomli_w

from drkit.core.files import write_text
from drkit.recipe.schema import FROM_SCRATCH, Choice, EncoderSettings, Recipe, WeightedLoss


def recipe_table(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain data of TOML's types.

    Settings that are None are left out, for TOML has no null. So are the sizes of an encoder made from scratch if the
    recipe has an existing encoder and no sizes of its own.
    """
    table: dict[str, Any] = plain(recipe)
    if recipe.encoder.pretrained is not None:
        default = EncoderSettings()
        for name in FROM_SCRATCH:
            if getattr(recipe.encoder, name) == getattr(default, name):
                del table["encoder"][name]
    return {"schema": table.pop("schema"), **table}


def recipe_toml(recipe: Recipe) -> str:
    """Return a recipe as TOML text."""
    return tomli_w.dumps(recipe_table(recipe))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe atomically."""
    write_text(path, recipe_toml(recipe))


def plain(value: Any) -> Any:
    """Return any piece of a recipe as plain data; a chosen part becomes its table."""
    if isinstance(value, Choice):
        return {"use": value.use, **plain(value.config)}
    if isinstance(value, WeightedLoss):
        return {"use": value.use, "on": value.on, "weight": value.weight, **plain(value.config)}
    if attrs.has(type(value)):
        return {a.name: plain(v) for a in attrs.fields(type(value)) if (v := getattr(value, a.name)) is not None}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def json_text(value: Any) -> str:
    """Return plain data as strictly valid JSON: NaN and infinite numbers become null.

    >>> print(json_text({"p": float("nan")}), end="")
    {
     "p": null
    }
    """
    return json.dumps(_finite(value), indent=1, ensure_ascii=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
