"""Finding plugins: every entry point in the group `drkit`, each loaded inside its own `try`.

A broken plugin is listed with its error and takes nobody down; `drkit plugins` prints the reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import attrs
import pluggy
from attrs import field, frozen

from drkit.core import hooks
from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec
from drkit.errors import DrkitError, UnknownNameError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

GROUP = "drkit"


@frozen
class PluginReport:
    """How one plugin loaded: its parts and recipes, or the error that kept it out."""

    name: str
    provider: str
    seconds: float
    specs: tuple[ComponentSpec, ...] = ()
    recipes: Mapping[str, Traversable] = field(factory=dict)
    pipelines: Mapping[str, Traversable] = field(factory=dict)
    error: str = ""
    imported_torch: bool = False


@frozen
class Installed:
    """Everything that is installed: the registry of parts, recipes and pipelines by name, and a report a plugin."""

    registry: Registry
    recipes: Mapping[str, tuple[Traversable, ...]]
    plugins: tuple[PluginReport, ...]
    pipelines: Mapping[str, tuple[Traversable, ...]] = field(factory=dict)

    def recipe(self, name: str) -> Traversable:
        """The file of a named recipe; UnknownNameError where there is none, DrkitError where two claim it."""
        return self._one("recipe", self.recipes, name)

    def pipeline(self, name: str) -> Traversable:
        """The file of a named fine-tuning pipeline; raises as `recipe` does."""
        return self._one("pipeline", self.pipelines, name)

    def _one(self, what: str, files: Mapping[str, tuple[Traversable, ...]], name: str) -> Traversable:
        claims = files.get(name, ())
        if not claims:
            raise UnknownNameError(what, name, sorted(files))
        if len(claims) > 1:
            owners = " and ".join(sorted(p.provider for p in self.plugins if name in {**p.recipes, **p.pipelines}))
            raise DrkitError(f"the {what} name {name!r} is claimed by {owners}; uninstall one of them")
        return claims[0]


def load_plugin(entry: EntryPoint) -> PluginReport:
    """Load one plugin and check what its hooks return; an error becomes part of the report."""
    provider = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    had_torch, started = "torch" in sys.modules, time.perf_counter()
    specs: tuple[ComponentSpec, ...] = ()
    recipes: Mapping[str, Traversable] = {}
    pipelines: Mapping[str, Traversable] = {}
    error = ""
    try:
        specs, recipes, pipelines = _ask(entry.load(), entry.name)
    except (Exception, SystemExit) as failure:  # a stranger's module may fail in any way
        error = f"{type(failure).__name__}: {failure}"
    return PluginReport(
        name=entry.name,
        provider=provider,
        seconds=time.perf_counter() - started,
        specs=tuple(attrs.evolve(spec, provider=provider) for spec in specs),
        recipes=recipes,
        pipelines=pipelines,
        error=error,
        imported_torch="torch" in sys.modules and not had_torch,
    )


def _ask(
    plugin: Any, name: str
) -> tuple[tuple[ComponentSpec, ...], Mapping[str, Traversable], Mapping[str, Traversable]]:
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(plugin, name)
    manager.check_pending()
    # One plugin is asked at a time, so each hook gives at most one answer.
    specs = tuple(spec for answer in manager.hook.drkit_components() for spec in answer)
    for spec in specs:
        if not isinstance(spec, ComponentSpec):
            raise TypeError(f"drkit_components returned {spec!r}, which is not a ComponentSpec")
    return specs, _files(manager.hook, "recipe"), _files(manager.hook, "pipeline")


def _files(hook: Any, what: str) -> Mapping[str, Traversable]:
    answers = getattr(hook, f"drkit_{what}s")()
    files = {name: file for answer in answers for name, file in answer.items()}
    for name, file in files.items():
        if not file.is_file():
            raise FileNotFoundError(f"drkit_{what}s names {name!r}, but {file} is not a file")
    return files


def discover(entries: Iterable[EntryPoint]) -> Installed:
    """Load every plugin in `entries`, broken ones included, and gather what they bring."""
    reports = tuple(load_plugin(entry) for entry in sorted(entries, key=lambda e: (e.name, e.value)))
    registry = Registry(spec for report in reports for spec in report.specs)
    recipes, pipelines = _claims(r.recipes for r in reports), _claims(r.pipelines for r in reports)
    return Installed(registry, recipes, reports, pipelines)


def _claims(found: Iterable[Mapping[str, Traversable]]) -> dict[str, tuple[Traversable, ...]]:
    claims: dict[str, tuple[Traversable, ...]] = {}
    for files in found:
        for name, file in files.items():
            claims[name] = (*claims.get(name, ()), file)
    return claims


@cache
def installed() -> Installed:
    """What is installed in this environment; found once a process."""
    return discover(entry_points(group=GROUP))
