"""Plain data as text: a recipe, complete, so that it reads back equal; and JSON that every reader takes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import tomli_w

from drkit.core.files import write_text
from drkit.recipe.schema import Choice, Recipe, WeightedLoss


def recipe_table(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain data in TOML's types; settings that are None are left out (TOML has no null)."""
    table: dict[str, Any] = plain(recipe)
    return {"schema": table.pop("schema"), **table}


def recipe_toml(recipe: Recipe) -> str:
    """The recipe as TOML text."""
    return tomli_w.dumps(recipe_table(recipe))


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write a recipe atomically."""
    write_text(path, recipe_toml(recipe))


def plain(value: Any) -> Any:
    """Any part of a recipe as plain data; a chosen part as its table."""
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
    """Plain data as JSON text that every reader takes: what is no finite number is null.

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
