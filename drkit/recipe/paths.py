"""The settings of a recipe by dotted path: what `--set` takes, with meanings; where two differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import attrs
from attrs import frozen

from drkit.core.registry import Registry
from drkit.core.schedules import schedules_in
from drkit.core.spec import Choice, Kind, brief
from drkit.recipe.schema import Recipe
from drkit.recipe.toml import recipe_table


@frozen
class SettingPath:
    """A setting of a recipe: its dotted path, meaning and value."""

    path: str
    meaning: str
    value: Any


def setting_paths(settings: Any, registry: Registry, path: str = "") -> Iterator[SettingPath]:
    """Yield every setting of a recipe, or of any other attrs object in it, in order; lists are indexed from 0.

    path: that of the object itself. Tables that are missing (a recipe without re-ranker) have no paths.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for a in attrs.fields(type(settings)):
        where, value = f"{path}.{a.name}" if path else a.name, getattr(settings, a.name)
        yield from _paths(value, registry, where, a, _slot(hints.get(a.name, a.type)))


def _paths(
    value: Any, registry: Registry, path: str, attribute: attrs.Attribute[Any], slot: tuple[Any, ...]
) -> Iterator[SettingPath]:
    if isinstance(value, Choice) and slot:
        yield from _part(value, registry, path, attribute, slot)
    elif attrs.has(type(value)):
        yield from setting_paths(value, registry, path)
    elif isinstance(value, Mapping) and any(attrs.has(type(inner)) for inner in value.values()):
        for key, inner in value.items():
            yield from _paths(inner, registry, f"{path}.{key}", attribute, slot)
    elif isinstance(value, tuple) and any(attrs.has(type(inner)) for inner in value):
        for index, inner in enumerate(value):
            yield from _paths(inner, registry, f"{path}.{index}", attribute, slot)
    else:
        yield SettingPath(path, str(attribute.metadata.get("help", "")), value)


def _part(
    part: Choice, registry: Registry, path: str, attribute: attrs.Attribute[Any], slot: tuple[Any, ...]
) -> Iterator[SettingPath]:
    """Yield what a recipe writes for a part: its name, or the text that stands for it, and its settings."""
    (kind, *beside), text = slot, brief(part)
    if isinstance(text, str) and "written" in attribute.metadata:
        yield SettingPath(path, str(attribute.metadata.get("help", "")), text)
        return
    name = text if isinstance(text, str) else part.use
    yield SettingPath(f"{path}.use", f"the {kind}: {registry.get(kind, part.use).summary}", name)
    for a in (a for one in beside for a in attrs.fields(one)):
        yield SettingPath(f"{path}.{a.name}", str(a.metadata.get("help", "")), getattr(part, a.name))
    if not isinstance(text, str):
        yield from setting_paths(part.config, registry, path)


def _slot(hint: Any) -> tuple[Any, ...]:
    """Return the kind of part, and what the slot adds to it, in a type such as `tuple[MinerChoice, ...]`."""
    if get_origin(hint) is Annotated:
        _, *rest = get_args(hint)
        return tuple(rest) if rest and isinstance(rest[0], Kind) else ()
    return next(filter(None, map(_slot, get_args(hint))), ())


def describe_schedules(recipe: Recipe) -> Iterator[str]:
    """Yield a line for each number that changes over a training: its path, and how it changes over which steps."""
    trainings: dict[str, Any] = {"pretrain": recipe.pretrain, "reranker": recipe.reranker}
    if recipe.finetune:
        rounds = enumerate(recipe.finetune.rounds)
        trainings |= {f"finetune.rounds.{number}": recipe.finetune.for_round(one) for number, one in rounds}
        trainings["finetune"] = recipe.finetune
    for path, schedule, _ in schedules_in(recipe):
        steps = next((one.max_steps for name, one in trainings.items() if path.startswith(f"{name}.") and one), -1)
        yield f"{path} {schedule.describe(steps if steps > 0 else None)}"


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
