"""The registry of parts: maps (kind, name) to a spec; `installed` fills it from plugins.

A bare name means drkit's own part if it has one, and otherwise the only part of that name. `PACKAGE:NAME` is never
ambiguous.

A plugin is an entry point in the group `drkit`. It implements some of the hooks below, which return data and have
no side effects. A plugin that fails to load is reported with its error and does not affect the others; `drkit plugins`
prints the reports.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import attrs
import pluggy
from attrs import field, frozen

from drkit.core.settings import config_problems
from drkit.core.spec import EXTENSIONS, ComponentSpec, Extension, Kind
from drkit.errors import DrkitError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

DRKIT = "drkit"


class Registry:
    """All parts that a recipe can name; immutable.

    failed: one line for each plugin that could not be loaded; errors about unknown names show these lines.

    >>> from drkit.builtin import drkit_components
    >>> registry = Registry(drkit_components())
    >>> registry.get("masker", "uniform").name
    'uniform'
    """

    def __init__(self, specs: Iterable[ComponentSpec], failed: Iterable[str] = ()) -> None:
        found, self.failed = tuple(specs), tuple(failed)
        self._names = {
            kind: NameTable(kind.value, (spec for spec in found if spec.kind == kind), self.failed) for kind in Kind
        }

    def __iter__(self) -> Iterator[ComponentSpec]:
        return (spec for kind in sorted(Kind) for spec in self._names[kind].items())

    def names(self, kind: Kind | str) -> tuple[str, ...]:
        """Return the shortest unambiguous name of every part of a kind, sorted."""
        return tuple(self._names[Kind(kind)])

    def specs(self, kind: Kind | str) -> tuple[ComponentSpec, ...]:
        """Return the specs of a kind, sorted by bare name; parts of the same name are all included."""
        return self._names[Kind(kind)].items()

    def get(self, kind: Kind | str, name: str) -> ComponentSpec:
        """Return the spec of the part `NAME` or `PACKAGE:NAME`.

        Raises UnknownNameError (with the closest known name), or DrkitError if the name is ambiguous.
        """
        return self._names[Kind(kind)].get(name)

    def name_of(self, spec: ComponentSpec) -> str:
        """Return the shortest unambiguous name of a part: `NAME`, or `PACKAGE:NAME`."""
        return self._names[spec.kind].name_of(spec)

    def clashes(self, kind: Kind | str) -> tuple[str, ...]:
        """Return a sentence for each name of a kind that several packages use."""
        return self._names[Kind(kind)].clashes()

    def split(self, kind: Kind | str, text: str) -> tuple[ComponentSpec, str | None]:
        """Return the part and the VALUE of `NAME`, `NAME:VALUE`, `PACKAGE:NAME` or `PACKAGE:NAME:VALUE`.

        The text before the first colon is, in this order of preference: one of drkit's own parts that takes a VALUE;
        a package with a part of the name that follows; a part. Raises as `get` does, and DrkitError for a VALUE given
        to a part that takes none.
        """
        head, colon, rest = text.partition(":")
        name, more, value = rest.partition(":")
        specs = self.specs(kind)
        is_builtin = any(s.name == head and s.shorthand and package_of(s.provider) == DRKIT for s in specs)
        is_full = f"{package_of(head)}:{name}" in map(full_name, specs)
        names = {s.name for s in specs}
        if colon and not is_builtin and (is_full or (head not in names and name in names)):
            spec, given = self.get(kind, f"{head}:{name}"), value if more else None
        else:
            spec, given = self.get(kind, head), rest if colon else None
        if given is not None and not spec.shorthand:
            raise DrkitError(
                f"the {spec.kind} {spec.name!r} takes no value after a colon; write `{self.name_of(spec)}`"
            )
        return spec, given

    def build(self, kind: Kind | str, name: str, config: Any = None, context: Any = None) -> Any:
        """Build a part: call its target with (config, context), the config at its defaults if none is given."""
        spec = self.get(kind, name)
        settings = spec.config() if config is None else config
        if not isinstance(settings, spec.config):
            raise DrkitError(f"{spec.kind} {name!r} takes {spec.config.__name__}, got {type(settings).__name__}")
        return spec.load()(settings, context)


# What a package provides under a name.
Named: TypeAlias = "ComponentSpec | Extension | NamedFile"
Item = TypeVar("Item", bound=Named)


class NameTable(Generic[Item]):
    """Items of one kind (parts, recipes ..) by name; immutable. Iterating yields the unambiguous names.

    kind: what the items are, for messages. failed: one line for each plugin that could not be loaded, and so may lack
    a name.
    """

    def __init__(self, kind: str, items: Iterable[Item] = (), failed: Iterable[str] = ()) -> None:
        self.kind, self.failed = kind, tuple(failed)
        self._table: dict[str, list[Item]] = {}
        for item in items:
            self._table.setdefault(item.name, []).append(item)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.name_of(item) for item in self.items()))

    def items(self) -> tuple[Item, ...]:
        """Return every item, sorted by bare name."""
        return tuple(item for name in sorted(self._table) for item in self._table[name])

    def get(self, name: str) -> Item:
        """Return the item that `NAME` or `PACKAGE:NAME` means.

        Raises UnknownNameError (with the closest name), or DrkitError if a bare name is ambiguous.
        """
        package, colon, bare = name.rpartition(":")
        candidates = self._table.get(bare, [])
        if colon:
            candidates = [item for item in candidates if package_of(item.provider) == package_of(package)]
        if not candidates and bare in self._table:
            spellings = " or ".join(repr(self.name_of(item)) for item in self._table[bare])
            raise DrkitError(f"no package {package!r} provides a {self.kind} named {bare!r}; write {spellings}")
        if not candidates:
            not_loaded = f". Not loaded: {'; '.join(self.failed)}; see `drkit plugins`" if self.failed else ""
            raise UnknownNameError(self.kind, name, self, advice=f"see `drkit list {self.kind}`{not_loaded}")
        chosen = _resolve(candidates)
        if chosen is None:
            raise DrkitError(self._ambiguous(name, candidates))
        return chosen

    def name_of(self, item: Item) -> str:
        """Return the shortest name by which `get` finds an item."""
        return item.name if _resolve(self._table.get(item.name, ())) is item else full_name(item)

    def clashes(self) -> tuple[str, ...]:
        """Return a sentence for each name that several packages use: what it means, and how to write the others."""
        return tuple(self._clash(rivals) for _, rivals in sorted(self._table.items()) if len(rivals) > 1)

    def _ambiguous(self, name: str, rivals: Sequence[Item]) -> str:
        providers = sorted({item.provider or "unknown" for item in rivals})
        if len(providers) == 1:
            return f"the {self.kind} name {name!r} is registered twice by {providers[0]}; ask its author to rename one"
        spellings = " or ".join(sorted(repr(full_name(item)) for item in rivals))
        return f"the {self.kind} name {name!r} is declared by {' and '.join(providers)}; write {spellings}"

    def _clash(self, rivals: Sequence[Item]) -> str:
        name, chosen = rivals[0].name, _resolve(rivals)
        packages = " and ".join(sorted({package_of(item.provider) for item in rivals}))
        others = " or ".join(sorted(repr(full_name(item)) for item in rivals if item is not chosen))
        if chosen is None:
            return f"{self.kind} {name!r} is declared by {packages}: write {others}"
        owner = package_of(chosen.provider)
        return f"{self.kind} {name!r} is declared by {packages}: {name!r} means {owner}'s, write {others} for the other"


def _resolve(rivals: Sequence[Item]) -> Item | None:
    """Return the item that their common bare name means: drkit's own, or the only one; None if it is ambiguous."""
    preferred = [item for item in rivals if package_of(item.provider) == DRKIT] or rivals
    return preferred[0] if len(preferred) == 1 else None


def full_name(item: Named) -> str:
    """Return `PACKAGE:NAME`."""
    return f"{package_of(item.provider)}:{item.name}"


def package_of(provider: str) -> str:
    """Return the normalised package name in `PACKAGE VERSION`; `unknown` for an empty provider.

    >>> package_of("My_Masker 1.0"), package_of("")
    ('my-masker', 'unknown')
    """
    return re.sub(r"[^a-z0-9]+", "-", provider.split(" ")[0].lower()) or "unknown"


GROUP = PROJECT = "drkit"  # the group of entry points, and pluggy's name of the project
# What plugins build on: raised when a public name goes or means something else. A plugin may declare it as DRKIT_API.
API_VERSION = 1
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def drkit_components() -> Sequence[ComponentSpec]:  # type: ignore[empty-body]
    """Return the specs of the parts that the plugin adds."""


@hookspec
def drkit_recipes() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """Return the recipes that the plugin adds: TOML files by name; NAME-small.toml beside one is its small scale."""


@hookspec
def drkit_pipelines() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """Return the pipelines that the plugin adds, as recipes: TOML files with [finetune] (and [reranker])."""


@hookspec
def drkit_architectures() -> Sequence[Extension]:  # type: ignore[empty-body]
    """Return the architectures that the plugin adds, by model type; each target is a `drkit.encoders.Architecture`."""


@hookspec
def drkit_commands() -> Sequence[Extension]:  # type: ignore[empty-body]
    """Return the commands that the plugin adds to `drkit`; each target is a `click.Command`."""


@hookspec
def drkit_engines() -> Sequence[Extension]:  # type: ignore[empty-body]
    """Return the engines that the plugin adds.

    Each target is called with an address (may be empty) and a device (`auto` or `cpu`), and returns a context manager
    of a `drkit.core.engine.Engine`: `--engine NAME:ADDRESS`.
    """


EXTENSION_HOOKS = {kind: f"drkit_{kind}s" for kind in EXTENSIONS}
HOOKS = ("drkit_components", "drkit_recipes", "drkit_pipelines", *EXTENSION_HOOKS.values())


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
        extensions={
            kind: NameTable(kind, (item for report in reports for item in report.extensions.get(kind, ())), failed)
            for kind in EXTENSIONS
        },
    )


@frozen
class Installed:
    """Everything that is installed, by name, and a report per plugin.

    extensions: by kind (`drkit.core.spec.EXTENSIONS`).
    """

    registry: Registry
    recipes: NameTable[NamedFile] = field(factory=lambda: NameTable("recipe"))
    plugins: tuple[PluginReport, ...] = ()
    pipelines: NameTable[NamedFile] = field(factory=lambda: NameTable("pipeline"))
    extensions: Mapping[str, NameTable[Extension]] = field(
        factory=lambda: {kind: NameTable(kind) for kind in EXTENSIONS}
    )

    def table(self, kind: str) -> NameTable[Any]:
        """Return the names of a kind that is not a part: `recipe`, `pipeline` or a kind of extension."""
        tables: Mapping[str, NameTable[Any]] = {"recipe": self.recipes, "pipeline": self.pipelines, **self.extensions}
        return tables[kind]

    def recipe(self, name: str) -> NamedFile:
        """Return the recipe `NAME` or `PACKAGE:NAME`.

        Raises UnknownNameError for an unknown name, DrkitError for an ambiguous one or a file that cannot be read.
        """
        return _require_readable("recipe", self.recipes.get(name))

    def pipeline(self, name: str) -> NamedFile:
        """Return a fine-tuning pipeline; raises as `recipe` does."""
        return _require_readable("pipeline", self.pipelines.get(name))


@frozen
class NamedFile:
    """A recipe or pipeline of a plugin: its TOML file, and why it cannot be read (empty if it can).

    small: the file of the small scale, NAME-small.toml beside NAME.toml; without it, `file` serves every scale.
    """

    name: str
    file: Traversable
    provider: str = ""
    problem: str = ""
    small: Traversable | None = None

    def text(self, *, small: bool = False) -> str:
        """Return the text of its file, or of that of the small scale if it has one."""
        file = self.small if small and self.small else self.file
        return file.read_text(encoding="utf-8")


@frozen
class PluginReport:
    """How loading one plugin went: what it adds, problems in its parts and files, or the error that stopped it.

    extensions: by kind (`drkit.core.spec.EXTENSIONS`).
    """

    name: str
    provider: str
    seconds: float = 0.0
    specs: tuple[ComponentSpec, ...] = ()
    recipes: tuple[NamedFile, ...] = ()
    pipelines: tuple[NamedFile, ...] = ()
    extensions: Mapping[str, tuple[Extension, ...]] = field(factory=dict)
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
        # What a plugin prints when it is imported is not a result of the command.
        with redirect_stdout(sys.stderr):
            report = _call_hooks(entry.load(), entry.name, provider)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:  # third-party code may fail in any way
        report = PluginReport(entry.name, provider, error=f"{type(failure).__name__}: {failure}")
    return attrs.evolve(
        report,
        seconds=time.perf_counter() - started,
        imported_torch="torch" in sys.modules and not had_torch,
    )


def _call_hooks(plugin: Any, name: str, provider: str) -> PluginReport:
    wanted = getattr(plugin, "DRKIT_API", API_VERSION)
    if wanted != API_VERSION:
        package = "drkit" if isinstance(wanted, int) and wanted > API_VERSION else "the plugin"
        raise TypeError(
            f"written for version {wanted!r} of drkit's API, and this drkit has {API_VERSION}; update {package}"
        )
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(sys.modules[__name__])
    manager.register(plugin, name)
    unknown = sorted(name for name in vars(manager.hook) if not name.startswith("_") and name not in HOOKS)
    if unknown:
        raise TypeError(f"no hook named {unknown[0]!r}{did_you_mean(unknown[0], HOOKS)} known: {', '.join(HOOKS)}")
    manager.check_pending()
    specs = _answers(manager, "drkit_components", ComponentSpec)
    broken = {spec: problems for spec in specs if (problems := config_problems(spec.config))}
    recipes = _named_files(manager.hook.drkit_recipes(), provider)
    pipelines = _named_files(manager.hook.drkit_pipelines(), provider)
    return PluginReport(
        name,
        provider,
        specs=tuple(attrs.evolve(spec, provider=provider) for spec in specs if spec not in broken),
        recipes=recipes,
        pipelines=pipelines,
        extensions={
            kind: tuple(attrs.evolve(item, provider=provider) for item in _answers(manager, hook, Extension))
            for kind, hook in EXTENSION_HOOKS.items()
        },
        problems=(
            *(f"{spec.kind} {spec.name!r}: {'; '.join(problems)}" for spec, problems in broken.items()),
            *(f"recipe {file.name!r}: {file.problem}" for file in recipes if file.problem),
            *(f"pipeline {file.name!r}: {file.problem}" for file in pipelines if file.problem),
        ),
    )


_Spec = TypeVar("_Spec", ComponentSpec, Extension)


def _answers(manager: pluggy.PluginManager, hook: str, wanted: type[_Spec]) -> list[_Spec]:
    """Return what a hook of the plugin returns. Raises TypeError for anything else than specs of the wanted class."""
    found = [spec for answer in getattr(manager.hook, hook)() for spec in answer]
    for spec in found:
        if not isinstance(spec, wanted):
            raise TypeError(f"{hook} must return {wanted.__name__}s, got {spec!r}")
    return found


def _named_files(answers: Sequence[Any], provider: str) -> tuple[NamedFile, ...]:
    found = ((str(name), file, _small_file(file)) for answer in answers for name, file in dict(answer).items())
    return tuple(
        NamedFile(name, file, provider, _file_problem(file) or (_file_problem(small) if small else ""), small)
        for name, file, small in found
    )


def _small_file(file: Any) -> Traversable | None:
    """Return the file of the small scale beside another file, or None if it is missing."""
    small = file.parent / f"{file.name.removesuffix('.toml')}-small.toml" if hasattr(file, "parent") else None
    return small if small is not None and small.is_file() else None


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


def _require_readable(kind: str, found: NamedFile) -> NamedFile:
    if found.problem:
        raise DrkitError(f"the {kind} {found.name!r} of {found.provider} is broken: {found.problem}")
    return found
