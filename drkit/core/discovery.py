"""Discovery of plugins: every entry point in the group `drkit`.

A plugin implements some of the three hooks below, which return data and have no side effects. A plugin that fails to
load is reported with its error and does not affect the others; `drkit plugins` prints the reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import attrs
import pluggy
from attrs import field, frozen

from drkit.core.registry import NameTable, Registry
from drkit.core.settings import config_problems
from drkit.core.spec import ComponentSpec
from drkit.errors import DrkitError, did_you_mean

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

GROUP = PROJECT = "drkit"  # the group of entry points, and pluggy's name of the project
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def drkit_components() -> Sequence[ComponentSpec]:  # type: ignore[empty-body]
    """Return the specs of the parts that the plugin adds."""


@hookspec
def drkit_recipes() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """Return the recipes that the plugin adds: TOML files by name."""


@hookspec
def drkit_pipelines() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """Return the fine-tuning pipelines that the plugin adds: TOML files with [finetune] (and [reranker]) by name."""


HOOKS = ("drkit_components", "drkit_recipes", "drkit_pipelines")


@cache
def installed() -> Installed:
    """Return everything that is installed in this environment; plugins are loaded once per process."""
    return discover(entry_points(group=GROUP))


def discover(entries: Iterable[EntryPoint]) -> Installed:
    """Load the plugins of these entry points, and collect what they add."""
    reports = tuple(load_plugin(entry) for entry in sorted(entries, key=lambda e: (e.name, e.value)))
    failed = [line for report in reports for line in report.failures]
    return Installed(
        registry=Registry((spec for report in reports for spec in report.specs), failed),
        recipes=NameTable("recipe", (file for report in reports for file in report.recipes), failed),
        plugins=reports,
        pipelines=NameTable("pipeline", (file for report in reports for file in report.pipelines), failed),
    )


@frozen
class Installed:
    """Everything that is installed: the registry of parts, recipes and pipelines by name, and a report per plugin."""

    registry: Registry
    recipes: NameTable[NamedFile] = field(factory=lambda: NameTable("recipe"))
    plugins: tuple[PluginReport, ...] = ()
    pipelines: NameTable[NamedFile] = field(factory=lambda: NameTable("pipeline"))

    def recipe(self, name: str) -> Traversable:
        """Return the file of the recipe `NAME` or `PACKAGE:NAME`.

        Raises UnknownNameError for an unknown name, DrkitError for an ambiguous one or a file that cannot be read.
        """
        return _require_readable("recipe", self.recipes.get(name))

    def pipeline(self, name: str) -> Traversable:
        """Return the file of a fine-tuning pipeline; raises as `recipe` does."""
        return _require_readable("pipeline", self.pipelines.get(name))


@frozen
class NamedFile:
    """A recipe or pipeline of a plugin: its TOML file, and why the file cannot be read (empty if it can)."""

    name: str
    file: Traversable
    provider: str = ""
    problem: str = ""


@frozen
class PluginReport:
    """How loading one plugin went: what it adds, problems in its parts and files, or the error that stopped it."""

    name: str
    provider: str
    seconds: float = 0.0
    specs: tuple[ComponentSpec, ...] = ()
    recipes: tuple[NamedFile, ...] = ()
    pipelines: tuple[NamedFile, ...] = ()
    problems: tuple[str, ...] = ()
    error: str = ""
    imported_torch: bool = False

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each failure: the plugin, and the first line of the error."""
        errors = (self.error, *self.problems) if self.error else self.problems
        return tuple(f"{self.name} ({error.splitlines()[0]})" for error in errors)


def load_plugin(entry: EntryPoint) -> PluginReport:
    """Load one plugin and check what its hooks return; an error becomes part of the report."""
    provider = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    had_torch, started = "torch" in sys.modules, time.perf_counter()
    try:
        report = _call_hooks(entry.load(), entry.name, provider)
    except (Exception, SystemExit) as failure:  # third-party code may fail in any way
        report = PluginReport(entry.name, provider, error=f"{type(failure).__name__}: {failure}")
    return attrs.evolve(
        report,
        seconds=time.perf_counter() - started,
        imported_torch="torch" in sys.modules and not had_torch,
    )


def _call_hooks(plugin: Any, name: str, provider: str) -> PluginReport:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(sys.modules[__name__])
    manager.register(plugin, name)
    unknown = sorted(name for name in vars(manager.hook) if not name.startswith("_") and name not in HOOKS)
    if unknown:
        raise TypeError(f"no hook named {unknown[0]!r}{did_you_mean(unknown[0], HOOKS)} known: {', '.join(HOOKS)}")
    manager.check_pending()
    specs = [spec for answer in manager.hook.drkit_components() for spec in answer]
    for spec in specs:
        if not isinstance(spec, ComponentSpec):
            raise TypeError(f"drkit_components returned {spec!r}, which is not a ComponentSpec")
    broken = {spec: problems for spec in specs if (problems := config_problems(spec.config))}
    recipes = _named_files(manager.hook.drkit_recipes(), provider)
    pipelines = _named_files(manager.hook.drkit_pipelines(), provider)
    return PluginReport(
        name,
        provider,
        specs=tuple(attrs.evolve(spec, provider=provider) for spec in specs if spec not in broken),
        recipes=recipes,
        pipelines=pipelines,
        problems=(
            *(f"{spec.kind} {spec.name!r}: {'; '.join(problems)}" for spec, problems in broken.items()),
            *(f"recipe {file.name!r}: {file.problem}" for file in recipes if file.problem),
            *(f"pipeline {file.name!r}: {file.problem}" for file in pipelines if file.problem),
        ),
    )


def _named_files(answers: Sequence[Any], provider: str) -> tuple[NamedFile, ...]:
    return tuple(
        NamedFile(str(name), file, provider, _file_problem(file))
        for answer in answers
        for name, file in dict(answer).items()
    )


def _file_problem(file: Any) -> str:
    """Return why a file cannot be read, or an empty string."""
    if not hasattr(file, "read_text"):
        return f"{file!r} is not a path; use importlib.resources.files(PACKAGE) / FILE"
    try:
        file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"{file} does not exist"
    except (OSError, UnicodeDecodeError) as error:
        return f"{file} cannot be read: {error}"
    return ""


def _require_readable(kind: str, found: NamedFile) -> Traversable:
    if found.problem:
        raise DrkitError(f"the {kind} {found.name!r} of {found.provider} is broken: {found.problem}")
    return found.file
