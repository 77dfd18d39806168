"""What a part says about itself: its name, where its code is, its settings, what it needs and provides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from importlib import import_module
from typing import Any

import attrs
from attrs import field, frozen


def _names(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class Kind(str, Enum):
    """The kinds of parts a recipe has slots for."""

    MASKER = "masker"
    DECODER = "decoder"
    LOSS = "loss"
    MINER = "miner"
    COLLECTION = "collection"

    def __str__(self) -> str:
        return self.value


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
    attrs class that holds every default and validator and imports no torch. `needs` and `provides` are
    names from `drkit.core.compose`: they decide which parts go together; where they depend on the settings, the
    config class has properties of these names, whose result is added. `trained_by` is the loss that trains a decoder
    where the recipe's own does not fit it (`none`: it has nothing to train). `shorthand` names the setting that
    `name:VALUE` fills on the command line (`beir:PATH`).

    Raises ValueError where the name is not kebab-case, the target is not `module:attribute`, the summary is
    longer than 70 characters, or the config is no attrs class.
    """

    kind: Kind = field(converter=Kind)
    name: str
    target: str
    config: type
    summary: str
    cite: Citation | None = None
    needs: tuple[str, ...] = field(default=(), converter=_names)
    provides: tuple[str, ...] = field(default=(), converter=_names)
    extras: tuple[str, ...] = field(default=(), converter=_names)
    trained_by: str = ""
    shorthand: str = ""
    deprecated: str = ""
    provider: str = ""

    def __attrs_post_init__(self) -> None:
        problems = []
        if not _NAME.fullmatch(self.name):
            problems.append(f"name {self.name!r} is not kebab-case")
        if self.target.count(":") != 1 or not all(self.target.split(":")):
            problems.append(f"target {self.target!r} is not 'module:attribute'")
        if not self.summary or len(self.summary) > 70:
            problems.append(f"summary has {len(self.summary)} characters; 1 to 70 are allowed")
        if not attrs.has(self.config):
            problems.append(f"config {self.config!r} is not an attrs class")
        elif self.shorthand and self.shorthand not in {a.name for a in attrs.fields(self.config)}:
            problems.append(f"shorthand {self.shorthand!r} is no setting of {self.config.__name__}")
        if problems:
            raise ValueError(f"component {self.kind}/{self.name}: " + "; ".join(problems))

    def needs_of(self, config: Any) -> frozenset[str]:
        """What it needs with these settings."""
        return frozenset(self.needs) | frozenset(getattr(config, "needs", ()))

    def provides_of(self, config: Any) -> frozenset[str]:
        """What it provides with these settings."""
        return frozenset(self.provides) | frozenset(getattr(config, "provides", ()))

    def load(self) -> Any:
        """The factory `target` names, imported now.

        Raises ImportError or AttributeError as Python does when the target does not resolve.
        """
        module, attribute = self.target.split(":")
        return getattr(import_module(module), attribute)
