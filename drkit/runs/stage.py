"""A stage: one folder, made by one function from the folders of earlier stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import field, frozen

from drkit.core.recipe import Recipe
from drkit.core.registry import Registry
from drkit.runs.manifest import digest
from drkit.runs.plans.estimate import Cost
from drkit.runs.progress import Progress


@frozen
class Stage:
    """One step of a plan.

    name: its folder under the run, and what the user reads. target: `module:function`, imported when the
    stage runs. needs: the stages whose folders it reads. settings: plain data, all that its result depends on
    besides those. resumable: its unfinished folder is kept, and the function goes on from what it finds there.
    joint: all processes of a run take part, as in a training.
    cost: what `--dry-run` says of it.
    """

    name: str
    target: str
    summary: str
    needs: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(factory=dict)
    resumable: bool = False
    joint: bool = False
    cost: Cost = field(factory=Cost)

    def fingerprint(self, contents: Mapping[str, str]) -> str:
        """Hash of everything the result depends on; `contents` are the content hashes of finished stages."""
        inputs = {name: contents[name] for name in self.needs}
        return digest({"stage": self.name, "target": self.target, "settings": self.settings, "inputs": inputs})

    def load(self) -> Callable[[StageRun], Mapping[str, Any]]:
        """The function behind `target`."""
        module, name = self.target.split(":")
        function: Callable[[StageRun], Mapping[str, Any]] = getattr(import_module(module), name)
        return function


@frozen(eq=False)
class StageRun:
    """What a stage's function gets: where to write, where its inputs stand, and the recipe.

    It writes into `folder` and returns figures for the manifest.
    """

    stage: Stage
    folder: Path
    inputs: Mapping[str, Path]
    recipe: Recipe
    registry: Registry
    progress: Progress
