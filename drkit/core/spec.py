"""What a part says about itself: its name, where its code is, its settings, and what goes into it and out of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from importlib import import_module
from typing import Any

import attrs
from attrs import field, frozen

from drkit.core.provided import CAPABILITIES, relating_rows
from drkit.errors import DrkitError, did_you_mean


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Kind(str, Enum):
    """The kinds of parts a recipe has slots for, and signals, which other parts ask for by name."""

    MASKER = "masker"
    DECODER = "decoder"
    LOSS = "loss"
    MINER = "miner"
    COLLECTION = "collection"
    SIGNAL = "signal"

    def __str__(self) -> str:
        return self.value


# What a part's result or value belongs to, by kind; the first is meant where a spec does not say.
SCOPES: Mapping[Kind, tuple[str, ...]] = {
    Kind.LOSS: ("rows", "batch"),
    Kind.SIGNAL: ("token", "text", "vocabulary"),
}


@frozen
class Citation:
    """The paper a part or a recipe comes from."""

    key: str
    title: str
    year: int
    url: str = ""


@frozen
class ComponentSpec:
    """One part, as data; its code is imported when it is first built.

    `target` is `"module:attribute"` of a factory called as `target(config, context)`. `config` is a frozen
    attrs class that holds every default and validator and imports no torch. Four fields decide which parts go together:

    receives: the names that the part's call receives: those of `drkit.core.provided`, or what another part provides.
    signals: the signals it reads, by name (`drkit list signal`). requires: what the run must have
    (`drkit.core.provided.CAPABILITIES`). provides: the names it makes.

    Where these depend on the settings, the config class has a property of the same name. Those of `receives` and
    `provides` return further names; those of `signals` and `requires` a mapping of further names to the settings that
    are wanted of each (`{}` and None: any).

    `scope` says of a loss whether it is a mean over `rows` (or tokens), which can be computed part by part, or compares
    the rows of a `batch` with each other; of a signal whether there is one value a `token`, a `text`, or an entry of
    the `vocabulary`. A property `scope` of the config class is asked where it has one.

    `trained_by` is the loss that trains a decoder where the recipe's own does not fit it (`none`: it has nothing to
    train). `shorthand` names the setting that `name:VALUE` fills on the command line (`beir:PATH`). `files` names the
    settings that hold paths of local files, which a run reads; a property `files` returns further paths.

    Raises ValueError where the name is not kebab-case, the target is not `module:attribute`, the summary is
    longer than 70 characters, the config is not an attrs class, or a word of `requires` or `scope` is unknown.
    """

    kind: Kind = field(converter=Kind)
    name: str
    target: str
    config: type
    summary: str
    cite: Citation | None = None
    receives: tuple[str, ...] = field(default=(), converter=_names)
    signals: tuple[str, ...] = field(default=(), converter=_names)
    requires: tuple[str, ...] = field(default=(), converter=_names)
    provides: tuple[str, ...] = field(default=(), converter=_names)
    scope: str = ""
    files: tuple[str, ...] = field(default=(), converter=_names)
    extras: tuple[str, ...] = field(default=(), converter=_names)
    trained_by: str = ""
    shorthand: str = ""
    deprecated: str = ""
    provider: str = ""

    def __attrs_post_init__(self) -> None:
        problems = [*self._shape_problems(), *self._config_problems(), *self._word_problems()]
        if problems:
            raise ValueError(f"component {self.kind}/{self.name}: " + "; ".join(problems))

    def _shape_problems(self) -> list[str]:
        problems = []
        if not _NAME.fullmatch(self.name):
            problems.append(f"name {self.name!r} is not kebab-case")
        if self.target.count(":") != 1 or not all(self.target.split(":")):
            problems.append(f"target {self.target!r} is not 'module:attribute'")
        if not self.summary or len(self.summary) > 70:
            problems.append(f"summary has {len(self.summary)} characters; 1 to 70 are allowed")
        return problems

    def _config_problems(self) -> list[str]:
        if not attrs.has(self.config):
            return [f"config {self.config!r} is not an attrs class"]
        known = {a.name for a in attrs.fields(self.config)}
        named = {"shorthand": (self.shorthand,) if self.shorthand else (), "files": self.files}
        return [
            f"{what} {name!r} is not a setting of {self.config.__name__}"
            for what, names in named.items()
            for name in names
            if name not in known
        ]

    def _word_problems(self) -> list[str]:
        problems = [
            f"requires {word!r}, which no run has{did_you_mean(word, CAPABILITIES)} allowed: {', '.join(CAPABILITIES)}"
            for word in self.requires
            if word not in CAPABILITIES
        ]
        problems += [
            f"{word!r} is in both receives and signals; name it once" for word in self.receives if word in self.signals
        ]
        follows_settings = attrs.has(self.config) and _declares(self.config, "scope")
        return [*problems, *scope_problems(self.kind, self.scope, () if follows_settings else self.receives)]

    def receives_of(self, config: Any) -> frozenset[str]:
        """The names that its call receives with these settings."""
        return frozenset(self.receives) | frozenset(declared_by(config, "receives", ()))

    def signals_of(self, config: Any) -> dict[str, Mapping[str, Any]]:
        """The signals it reads with these settings, and the settings it wants of each."""
        return {**{name: {} for name in self.signals}, **self._mapping(config, "signals")}

    def requires_of(self, config: Any) -> dict[str, Any]:
        """The capabilities it requires with these settings, and the settings it wants of each."""
        return {**dict.fromkeys(self.requires), **self._mapping(config, "requires")}

    def provides_of(self, config: Any) -> frozenset[str]:
        """The names it makes with these settings."""
        return frozenset(self.provides) | frozenset(declared_by(config, "provides", ()))

    def scope_of(self, config: Any) -> str:
        """What its result or value belongs to, with these settings; empty for kinds without a scope."""
        default = SCOPES.get(self.kind, ("",))[0]
        return str(declared_by(config, "scope", "") or self.scope or default)

    def paths_of(self, config: Any) -> tuple[str, ...]:
        """The local paths that it reads with these settings; what is no path is left to the reader."""
        named = (getattr(config, name) for name in self.files)
        return tuple(str(path or "") for path in (*named, *declared_by(config, "files", ())))

    def _mapping(self, config: Any, name: str) -> Mapping[str, Any]:
        found = declared_by(config, name, {})
        if not isinstance(found, Mapping):
            raise DrkitError(
                f"{self.kind} {self.name!r}: the property {name} of {type(config).__name__} returned {found!r}; "
                f"return a mapping of names to the settings wanted of each"
            )
        return found

    def load(self) -> Any:
        """The factory `target` names, imported now.

        Raises ImportError or AttributeError as Python does when the target does not resolve.
        """
        module, attribute = self.target.split(":")
        return getattr(import_module(module), attribute)


def declared_by(config: Any, name: str, default: Any) -> Any:
    """What a config class declares by a property of this name; a setting of the same name declares nothing."""
    return getattr(config, name) if _declares(type(config), name) else default


def _declares(config: type, name: str) -> bool:
    is_setting = attrs.has(config) and name in {a.name for a in attrs.fields(config)}
    return hasattr(config, name) and not is_setting


def scope_problems(kind: Kind, scope: str, receives: Iterable[str]) -> list[str]:
    """What is wrong with a scope of this kind beside the names that the part receives; empty where nothing is."""
    allowed = SCOPES.get(kind, ())
    if scope and scope not in allowed:
        return [
            f"scope {scope!r} is unknown{did_you_mean(scope, allowed)} allowed: "
            f"{', '.join(allowed) or f'none, a {kind} has no scope'}"
        ]
    across = sorted(relating_rows() & set(receives))
    if kind is Kind.LOSS and across and scope != "batch":
        return [f"receives {' and '.join(across)}, which relates rows of the batch to each other: set scope='batch'"]
    return []
