"""A plan in the making, and what of a training's settings its result depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from drkit.core.recipe import Recipe
from drkit.core.registry import Registry
from drkit.runs.stage import Stage

STAGES = "drkit.runs.stages"
# Where a run logs and saves does not change what it computes.
COSMETIC = ("logging_steps", "save_steps")

Table = Mapping[str, Any]


@frozen
class Draft:
    """A plan being made: the recipe, the same as plain data, the parts there are, and the stages by name."""

    recipe: Recipe
    table: Table
    registry: Registry
    stages: dict[str, Stage] = field(factory=dict)

    def add(self, name: str, module: str, summary: str, needs: tuple[str, ...], **rest: Any) -> str:
        """Add a stage unless one of this name stands; returns its name."""
        self.stages.setdefault(
            name, Stage(name=name, target=f"{STAGES}.{module}:run", summary=summary, needs=needs, **rest)
        )
        return name


def lasting(table: Table, *also: str) -> dict[str, Any]:
    """A training's settings without the cosmetic ones and `also`."""
    return {key: value for key, value in table.items() if key not in (*COSMETIC, *also)}
