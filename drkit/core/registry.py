"""The registry of parts: maps (kind, name) to a spec; `installed` fills it from plugins.

A name that several packages declare means drkit's own part if it has one; otherwise it means none of them.

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
from functools import cache, partial
from importlib.metadata import EntryPoint, distributions, entry_points
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import attrs
import pluggy
from attrs import field, frozen

from drkit.core.process_state import restored_process_state
from drkit.core.schedules import is_scheduled
from drkit.core.settings import config_problems
from drkit.core.spec import EXTENSIONS, ComponentSpec, Extension, Kind, resolve
from drkit.core.types import BuildContext
from drkit.errors import DrkitError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from drkit.core.protocols import (
        Batches,
        Collection,
        ColumnSource,
        Context,
        Decoder,
        Loss,
        Masker,
        NegativeFilter,
        NegativeMiner,
        Pooling,
        QuerySource,
        Signal,
    )

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
        """Return the name of every part of a kind, sorted."""
        return tuple(self._names[Kind(kind)])

    def specs(self, kind: Kind | str) -> tuple[ComponentSpec, ...]:
        """Return the specs of a kind, sorted by name."""
        return self._names[Kind(kind)].items()

    def get(self, kind: Kind | str, name: str) -> ComponentSpec:
        """Return the spec of a part. Raises UnknownNameError, with the closest known name."""
        return self._names[Kind(kind)].get(name)

    @property
    def clashes(self) -> tuple[str, ...]:
        """A sentence for each name that several packages declare."""
        return tuple(line for table in self._names.values() for line in table.clashes)

    def split(self, kind: Kind | str, text: str) -> tuple[ComponentSpec, str | None]:
        """Return the part and the VALUE of `NAME` or `NAME:VALUE`.

        Raises UnknownNameError, and DrkitError for a VALUE given to a part that takes none.
        """
        name, colon, value = text.partition(":")
        spec = self.get(kind, name)
        if colon and not spec.shorthand:
            raise DrkitError(f"the {spec.kind} {name!r} takes no value after a colon; write `{name}`")
        return spec, value if colon else None

    @overload
    def build(
        self, kind: Literal[Kind.MASKER], name: str, config: Any = None, context: BuildContext | None = None
    ) -> Masker: ...
    @overload
    def build(
        self, kind: Literal[Kind.CONTEXT], name: str, config: Any = None, context: BuildContext | None = None
    ) -> Context: ...
    @overload
    def build(
        self, kind: Literal[Kind.DECODER], name: str, config: Any = None, context: BuildContext | None = None
    ) -> Decoder: ...
    @overload
    def build(
        self, kind: Literal[Kind.LOSS], name: str, config: Any = None, context: BuildContext | None = None
    ) -> Loss: ...
    @overload
    def build(
        self, kind: Literal[Kind.MINER], name: str, config: Any = None, context: BuildContext | None = None
    ) -> NegativeMiner | NegativeFilter: ...
    @overload
    def build(
        self, kind: Literal[Kind.COLLECTION], name: str, config: Any = None, context: BuildContext | None = None
    ) -> Collection: ...
    @overload
    def build(
        self, kind: Literal[Kind.SIGNAL], name: str, config: Any = None, context: BuildContext | None = None
    ) -> Signal: ...
    @overload
    def build(
        self, kind: Literal[Kind.POOLING], name: str, config: Any = None, context: BuildContext | None = None
    ) -> Pooling: ...
    @overload
    def build(
        self, kind: Literal[Kind.COLUMN], name: str, config: Any = None, context: BuildContext | None = None
    ) -> ColumnSource: ...
    @overload
    def build(
        self, kind: Literal[Kind.BATCHES], name: str, config: Any = None, context: BuildContext | None = None
    ) -> Batches: ...
    @overload
    def build(
        self, kind: Literal[Kind.QUERIES], name: str, config: Any = None, context: BuildContext | None = None
    ) -> QuerySource: ...
    @overload
    def build(self, kind: str, name: str, config: Any = None, context: BuildContext | None = None) -> Any: ...
    def build(self, kind: Kind | str, name: str, config: Any = None, context: BuildContext | None = None) -> Any:
        """Build a part: call its target with (config, context), the config at its defaults if none is given.

        A context gets this registry, from which the part builds those that its settings choose. With a schedule in its
        settings, the part is built anew with plain numbers whenever they change (`drkit.core.scheduled_parts`).
        """
        spec = self.get(kind, name)
        settings = spec.config() if config is None else config
        if not isinstance(settings, spec.config):
            raise DrkitError(f"{spec.kind} {name!r} takes {spec.config.__name__}, got {type(settings).__name__}")
        context = context and attrs.evolve(context, registry=self)
        if not is_scheduled(settings):
            return self.make(spec, settings, context)
        if spec.kind not in _SCHEDULED:
            raise DrkitError(f"{spec.kind} {name!r} cannot change over a training; give its settings plain numbers")
        # A masker is copied to worker processes, without the model that fills masked positions.
        kept = context and attrs.evolve(context, generator=None)
        make = partial(_make, self, spec, context if spec.kind is Kind.LOSS else kept)
        return resolve(_SCHEDULED[spec.kind])(make, settings)

    def make(self, spec: ComponentSpec, settings: Any, context: BuildContext | None) -> Any:
        """Call the target of a spec; `build` goes through this method, which the trial replaces."""
        return spec.load()(settings, context)


# What builds the parts of a kind whose settings change over a training.
_SCHEDULED = {
    Kind.MASKER: "drkit.core.scheduled_parts:scheduled_masker",
    Kind.LOSS: "drkit.core.scheduled_parts:scheduled_loss",
}


def _make(registry: Registry, spec: ComponentSpec, context: BuildContext | None, settings: Any) -> Any:
    return registry.make(spec, settings, context)


def registry_of(context: BuildContext | None) -> Registry:
    """Return the registry that a part is built from, for the parts that its settings choose; else all installed ones.

    `registry_of(context).build(Kind.LOSS, config.loss.use, config.loss.config, context)` builds a loss within a loss.
    """
    return context.registry if context and context.registry else installed().registry


# What a package provides under a name.
Item = TypeVar("Item", bound="ComponentSpec | Extension | NamedFile")


class NameTable(Generic[Item]):
    """Items of one kind (parts, recipes ..) by name; immutable. Iterating yields the names, sorted.

    Of items with the same name, drkit's own is kept; without one, none of them is. kind: what the items are, for
    messages. failed: one line for each plugin that could not be loaded, and so may lack a name. clashes: a sentence for
    each name that several packages declare.
    """

    def __init__(self, kind: str, items: Iterable[Item] = (), failed: Iterable[str] = ()) -> None:
        rivals: dict[str, list[Item]] = {}
        for item in items:
            rivals.setdefault(item.name, []).append(item)
        preferred = {
            name: [item for item in found if package_of(item.provider) == DRKIT] or found
            for name, found in rivals.items()
        }
        self._items = {name: found[0] for name, found in sorted(preferred.items()) if len(found) == 1}
        self.kind, self.failed = kind, tuple(failed)
        self.clashes = tuple(self._clash(name, found) for name, found in rivals.items() if len(found) > 1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def items(self) -> tuple[Item, ...]:
        """Return every item, sorted by name."""
        return tuple(self._items.values())

    def get(self, name: str) -> Item:
        """Return the item of a name. Raises UnknownNameError, with the closest name."""
        if name not in self._items:
            lines = (*self.failed, *self.clashes)
            not_loaded = f". Not loaded: {'; '.join(lines)}; see `drkit plugins`" if lines else ""
            raise UnknownNameError(self.kind, name, self, advice=f"see `drkit list {self.kind}`{not_loaded}")
        return self._items[name]

    def _clash(self, name: str, rivals: Sequence[Item]) -> str:
        providers = " and ".join(sorted({item.provider or "unknown" for item in rivals}))
        used = "drkit's own is used" if name in self._items else "none of them is used"
        return f"{self.kind} {name!r} is declared {len(rivals)} times, by {providers}; {used}: rename or uninstall one"


def package_of(provider: str) -> str:
    """Return the normalised package name in `PACKAGE VERSION`; `unknown` for an empty provider.

    >>> package_of("My_Masker 1.0"), package_of("")
    ('my-masker', 'unknown')
    """
    return re.sub(r"[^a-z0-9]+", "-", provider.split(" ")[0].lower()) or "unknown"


# Seconds to load a plugin that deserve a note.
SLOW = 2.0
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
def drkit_backends() -> Sequence[Extension]:  # type: ignore[empty-body]
    """Return the encoding backends that the plugin adds; each target is a `drkit.search.Backend`."""


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

    @property
    def clashes(self) -> tuple[str, ...]:
        """A sentence for each name of any kind that several packages declare."""
        tables: tuple[NameTable[Any], ...] = (self.pipelines, self.recipes, *self.extensions.values())
        return (*self.registry.clashes, *(line for table in tables for line in table.clashes))

    def table(self, kind: str) -> NameTable[Any]:
        """Return the names of a kind that is not a part: `recipe`, `pipeline` or a kind of extension."""
        tables: Mapping[str, NameTable[Any]] = {"recipe": self.recipes, "pipeline": self.pipelines, **self.extensions}
        return tables[kind]


@frozen
class NamedFile:
    """A recipe or pipeline of a plugin: its TOML file.

    small: the file of the small scale, NAME-small.toml beside NAME.toml; without it, `file` serves every scale.
    results: the numbers of its paper, results.toml beside it.
    """

    name: str
    file: Traversable
    provider: str = ""
    small: Traversable | None = None
    results: Traversable | None = None

    def text(self, *, small: bool = False) -> str:
        """Return the text of its file, or of that of the small scale if it has one.

        Raises DrkitError if the file cannot be read.
        """
        file = self.small if small and self.small else self.file
        try:
            return file.read_text(encoding="utf-8")
        except (AttributeError, OSError, UnicodeDecodeError) as error:
            raise DrkitError(f"the file of {self.name!r} of {self.provider} cannot be read: {error}") from None


@frozen
class PluginReport:
    """How loading one plugin went: what it adds, problems in its parts, or the error that stopped it.

    notes: sentences about what did not stop it, such as a second installed version. extensions: by kind
    (`drkit.core.spec.EXTENSIONS`).
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
    notes: tuple[str, ...] = ()

    @property
    def is_slow(self) -> bool:
        """Whether loading took so long that every command is noticeably slower."""
        return self.seconds > SLOW

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for each failure: the plugin, and the first line of the error."""
        errors = (self.error, *self.problems) if self.error else self.problems
        return tuple(f"{self.name} ({error.splitlines()[0]})" for error in errors)


def load_plugin(entry: EntryPoint) -> PluginReport:
    """Load one plugin and check what its hooks return; an error becomes part of the report."""
    provider = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    started = time.perf_counter()
    changed: list[str] = []
    try:
        # What a plugin prints when it is imported is not a result of the command.
        with redirect_stdout(sys.stderr), restored_process_state() as changed:
            report = _call_hooks(entry.load(), entry.name, provider)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:  # third-party code may fail in any way
        report = PluginReport(entry.name, provider, error=f"{type(failure).__name__}: {failure}")
    notes = [f"changed {' and '.join(changed)} when it was loaded; drkit has restored it"] if changed else []
    notes += _other_versions(entry)
    return attrs.evolve(report, seconds=time.perf_counter() - started, notes=tuple(notes))


def _other_versions(entry: EntryPoint) -> Iterator[str]:
    """Yield a sentence if several versions of an entry point's package are installed: any of them may run."""
    found = distributions(name=entry.dist.name) if entry.dist else ()
    places = {one.version: str(one.locate_file("")) for one in found}
    if entry.dist and len(places) > 1:
        listed = " and ".join(f"{version} ({place})" for version, place in sorted(places.items()))
        yield (
            f"is installed in {len(places)} versions, {listed}: the metadata of {entry.dist.version} is read, and the "
            f"code may be of another; uninstall all of them (repeat pip uninstall), then install one"
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
    return PluginReport(
        name,
        provider,
        specs=tuple(attrs.evolve(spec, provider=provider) for spec in specs if spec not in broken),
        recipes=_named_files(manager.hook.drkit_recipes(), provider),
        pipelines=_named_files(manager.hook.drkit_pipelines(), provider),
        extensions={
            kind: tuple(attrs.evolve(item, provider=provider) for item in _answers(manager, hook, Extension))
            for kind, hook in EXTENSION_HOOKS.items()
        },
        problems=tuple(f"{spec.kind} {spec.name!r}: {'; '.join(problems)}" for spec, problems in broken.items()),
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
    found = ((str(name), file) for answer in answers for name, file in dict(answer).items())
    return tuple(
        NamedFile(
            name,
            file,
            provider,
            small=_beside(file, f"{getattr(file, 'name', name).removesuffix('.toml')}-small.toml"),
            results=_beside(file, "results.toml"),
        )
        for name, file in found
    )


def _beside(file: Any, name: str) -> Traversable | None:
    """Return the file with a name beside another file, or None if it is missing."""
    found = file.parent / name if hasattr(file, "parent") else None
    return found if found is not None and found.is_file() else None
