"""Finding plugins: every entry point in the group `drkit`, each loaded inside its own `try`.

A broken plugin is listed with its error and takes nobody down; of a plugin with a broken part or recipe, the rest
works. `drkit plugins` prints the reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import attrs
import pluggy
from attrs import field, frozen

from drkit.core import hooks
from drkit.core.claims import Claims
from drkit.core.registry import Registry
from drkit.core.settings import config_problems
from drkit.core.spec import ComponentSpec
from drkit.errors import DrkitError, did_you_mean

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

GROUP = "drkit"
HOOKS = ("drkit_components", "drkit_recipes", "drkit_pipelines")


@frozen
class NamedFile:
    """A recipe or pipeline that a plugin brings: name, TOML file, and why that cannot be read (empty: it can)."""

    name: str
    file: Traversable
    provider: str = ""
    problem: str = ""


@frozen
class PluginReport:
    """How one plugin loaded: its parts and recipes, what of them is broken, or the error that kept it all out."""

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
        """Each thing that could not be loaded, in a line: the plugin, and the first line of the error."""
        errors = (self.error, *self.problems) if self.error else self.problems
        return tuple(f"{self.name} ({error.splitlines()[0]})" for error in errors)


@frozen
class Installed:
    """Everything that is installed: the registry of parts, recipes and pipelines by name, and a report a plugin."""

    registry: Registry
    recipes: Claims[NamedFile] = field(factory=lambda: Claims("recipe"))
    plugins: tuple[PluginReport, ...] = ()
    pipelines: Claims[NamedFile] = field(factory=lambda: Claims("pipeline"))

    def recipe(self, name: str) -> Traversable:
        """Return the file of a recipe by `NAME` or `PACKAGE:NAME`.

        Raises UnknownNameError for an unknown name, DrkitError for an ambiguous one or a file that cannot be read.
        """
        return _readable("recipe", self.recipes.get(name))

    def pipeline(self, name: str) -> Traversable:
        """Return the file of a fine-tuning pipeline; raises as `recipe` does."""
        return _readable("pipeline", self.pipelines.get(name))


def _readable(what: str, found: NamedFile) -> Traversable:
    if found.problem:
        raise DrkitError(f"the {what} {found.name!r} of {found.provider} is broken: {found.problem}")
    return found.file


def load_plugin(entry: EntryPoint) -> PluginReport:
    """Load one plugin and check what its hooks return; an error becomes part of the report."""
    provider = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    had_torch, started = "torch" in sys.modules, time.perf_counter()
    try:
        report = _report(entry.load(), entry.name, provider)
    except (Exception, SystemExit) as failure:  # a stranger's module may fail in any way
        report = PluginReport(entry.name, provider, error=f"{type(failure).__name__}: {failure}")
    return attrs.evolve(
        report,
        seconds=time.perf_counter() - started,
        imported_torch="torch" in sys.modules and not had_torch,
    )


def _report(plugin: Any, name: str, provider: str) -> PluginReport:
    """Ask the hooks of one plugin; each gives at most one answer."""
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(plugin, name)
    _refuse_unknown_hooks(manager)
    manager.check_pending()
    specs = [spec for answer in manager.hook.drkit_components() for spec in answer]
    for spec in specs:
        if not isinstance(spec, ComponentSpec):
            raise TypeError(f"drkit_components returned {spec!r}, which is not a ComponentSpec")
    broken = {spec: problems for spec in specs if (problems := config_problems(spec.config))}
    recipes = _files(manager.hook.drkit_recipes(), provider)
    pipelines = _files(manager.hook.drkit_pipelines(), provider)
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


def _refuse_unknown_hooks(manager: pluggy.PluginManager) -> None:
    """Raise TypeError for a hook that drkit does not have, with the closest that it has."""
    unknown = sorted(name for name in vars(manager.hook) if not name.startswith("_") and name not in HOOKS)
    if unknown:
        raise TypeError(f"no hook named {unknown[0]!r}{did_you_mean(unknown[0], HOOKS)} known: {', '.join(HOOKS)}")


def _files(answers: Sequence[Any], provider: str) -> tuple[NamedFile, ...]:
    return tuple(
        NamedFile(str(name), file, provider, _file_problem(file))
        for answer in answers
        for name, file in dict(answer).items()
    )


def _file_problem(file: Any) -> str:
    """Return why a recipe's file cannot be read, or an empty string."""
    if not hasattr(file, "read_text"):
        return f"{file!r} is not a path; use importlib.resources.files(PACKAGE) / FILE"
    try:
        file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"{file} does not exist"
    except (OSError, UnicodeDecodeError) as error:
        return f"{file} cannot be read: {error}"
    return ""


def discover(entries: Iterable[EntryPoint]) -> Installed:
    """Load every plugin in `entries`, broken ones included, and gather what they bring."""
    reports = tuple(load_plugin(entry) for entry in sorted(entries, key=lambda e: (e.name, e.value)))
    failed = [line for report in reports for line in report.failures]
    return Installed(
        registry=Registry((spec for report in reports for spec in report.specs), failed),
        recipes=Claims("recipe", (file for report in reports for file in report.recipes), failed),
        plugins=reports,
        pipelines=Claims("pipeline", (file for report in reports for file in report.pipelines), failed),
    )


@cache
def installed() -> Installed:
    """What is installed in this environment; found once a process."""
    return discover(entry_points(group=GROUP))
