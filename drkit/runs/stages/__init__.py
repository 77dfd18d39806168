"""The stages of a run, those of one step in a file: settings, inputs, version, and the function that runs the stage.

The files import no torch, because plans import them; their functions import the rest when the stage runs.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from drkit.runs.stage import StageSpec


def stage_folders() -> tuple[str, ...]:
    """Return the folders of all stages but the rounds that a recipe names, sorted; `NAME-*` is a family of folders."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    specs = [value for module in modules for value in vars(module).values() if isinstance(value, StageSpec)]
    return tuple(sorted({folder for spec in specs for folder in spec.folders if folder != "*"}))
