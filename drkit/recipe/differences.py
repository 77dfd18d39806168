"""The differences of two recipes, setting by setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from drkit.recipe.schema import Recipe
from drkit.recipe.toml import recipe_table


@frozen
class Difference:
    """A setting whose values differ, by its dotted path; None where a recipe does not have it.

    A table that only one of the recipes has (a re-ranker, a further round) is one difference.
    """

    path: str
    left: Any
    right: Any


def recipe_differences(left: Recipe, right: Recipe) -> list[Difference]:
    """Return the settings that differ, in the order of the recipes; names of recipes are not compared."""
    return [one for one in _differences(recipe_table(left), recipe_table(right), "") if one.path != "name"]


def _differences(left: Any, right: Any, path: str) -> Iterator[Difference]:
    mine, other = _items(left), _items(right)
    if mine is None or other is None:
        if left != right:
            yield Difference(path, left, right)
        return
    for key in dict.fromkeys((*mine, *other)):
        yield from _differences(mine.get(key), other.get(key), f"{path}.{key}" if path else key)


def _items(value: Any) -> Mapping[str, Any] | None:
    """Return the settings of a table, or the tables of a list by position; None for a single value."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        return {str(index): inner for index, inner in enumerate(value)}
    return None
