"""The stages of a run, those of one part of it in a file: settings, inputs, version, work, and how a plan adds them.

The files import no torch; the functions that make the stages are in the file of the same name in `runs/making`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from drkit.runs.stage import StageSpec


def declared_stages() -> tuple[StageSpec[Any], ...]:
    """Return every stage that a module of this package declares, each name once."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, StageSpec)]
    return tuple({spec.name: spec for spec in found}.values())


def stage_folders() -> tuple[str, ...]:
    """Return the folders of all stages but the rounds that a recipe names, sorted; `NAME-*` is a family of folders."""
    return tuple(sorted({folder for spec in declared_stages() for folder in spec.folders if folder != "*"}))
