"""The registry: an immutable value that maps (kind, name) to a spec, and settles names that several packages claim.

A bare name means drkit's own part where drkit has one, and otherwise the only part of that name. `PACKAGE:NAME` names
any part for certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import DrkitError, UnknownNameError

OWN = "drkit"


class Claim(Protocol):
    """A thing with a name, brought by a package: `provider` is the package and its version."""

    @property
    def name(self) -> str:
        """Its name, without a package."""

    @property
    def provider(self) -> str:
        """`PACKAGE VERSION`."""


Claimed = TypeVar("Claimed", bound=Claim)


def package_of(provider: str) -> str:
    """Return the normalised name of the package in `PACKAGE VERSION`; `unknown` where the provider is empty.

    >>> package_of("My_Masker 1.0"), package_of("")
    ('my-masker', 'unknown')
    """
    return re.sub(r"[^a-z0-9]+", "-", provider.split(" ")[0].lower()) or "unknown"


def full_name(claim: Claim) -> str:
    """Return `PACKAGE:NAME`."""
    return f"{package_of(claim.provider)}:{claim.name}"


class Claims(Generic[Claimed]):
    """The parts of one kind (or the recipes, or the pipelines) by name; immutable. Iterating gives their names.

    what: the kind, for messages. failed: a line for each plugin that could not be loaded and might have had the name.
    """

    def __init__(self, what: str, items: Iterable[Claimed] = (), failed: Iterable[str] = ()) -> None:
        self.what, self.failed = what, tuple(failed)
        self._table: dict[str, list[Claimed]] = {}
        for item in items:
            self._table.setdefault(item.name, []).append(item)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.name_of(item) for item in self.items()))

    def items(self) -> tuple[Claimed, ...]:
        """Return everything, sorted by bare name; of a name that is claimed twice, each claim."""
        return tuple(item for name in sorted(self._table) for item in self._table[name])

    def get(self, name: str) -> Claimed:
        """Return what `NAME` or `PACKAGE:NAME` means.

        Raises UnknownNameError (with the closest name), or DrkitError for a bare name that is ambiguous.
        """
        package, colon, bare = name.rpartition(":")
        rivals = self._table.get(bare, [])
        if colon:
            rivals = [item for item in rivals if package_of(item.provider) == package_of(package)]
        if not rivals:
            raise UnknownNameError(self.what, name, tuple(self), self.failed)
        meant = _meant(rivals)
        if meant is None:
            raise DrkitError(self._ambiguous(name, rivals))
        return meant

    def name_of(self, item: Claimed) -> str:
        """Return the shortest name that `get` finds this item under."""
        return item.name if _meant(self._table.get(item.name, ())) is item else full_name(item)

    def clashes(self) -> tuple[str, ...]:
        """Return a sentence for each name that several packages claim: whose it is, and how to name the others."""
        return tuple(self._clash(rivals) for _, rivals in sorted(self._table.items()) if len(rivals) > 1)

    def _ambiguous(self, name: str, rivals: Sequence[Claimed]) -> str:
        providers = sorted({item.provider or "unknown" for item in rivals})
        if len(providers) == 1:
            return f"the {self.what} name {name!r} is registered twice by {providers[0]}; ask its author to rename one"
        spellings = " or ".join(sorted(repr(full_name(item)) for item in rivals))
        return f"the {self.what} name {name!r} is claimed by {' and '.join(providers)}; write {spellings}"

    def _clash(self, rivals: Sequence[Claimed]) -> str:
        name, meant = rivals[0].name, _meant(rivals)
        packages = " and ".join(sorted({package_of(item.provider) for item in rivals}))
        others = " or ".join(sorted(repr(full_name(item)) for item in rivals if item is not meant))
        own = f"{name!r} means {package_of(meant.provider)}'s, " if meant is not None else ""
        return f"{self.what} {name!r} is claimed by {packages}: {own}write {others}{' for the other' if own else ''}"


def _meant(rivals: Sequence[Claimed]) -> Claimed | None:
    """Return what a bare name means: drkit's own, or the only claim; None where it is ambiguous."""
    own = [item for item in rivals if package_of(item.provider) == OWN] or rivals
    return own[0] if len(own) == 1 else None


class Registry:
    """All parts that can be named in a recipe; immutable once made.

    Where packages claim one name, it means drkit's own part; `PACKAGE:NAME` names any (`drkit.core.registry`).
    failed: a line for each plugin that could not be loaded; messages about unknown names show them.

    >>> from drkit.builtin import drkit_components
    >>> registry = Registry(drkit_components())
    >>> registry.get("masker", "uniform").name
    'uniform'
    """

    def __init__(self, specs: Iterable[ComponentSpec], failed: Iterable[str] = ()) -> None:
        found, self.failed = tuple(specs), tuple(failed)
        self._claims = {
            kind: Claims(kind.value, (spec for spec in found if spec.kind == kind), self.failed) for kind in Kind
        }

    def __iter__(self) -> Iterator[ComponentSpec]:
        return (spec for kind in sorted(Kind) for spec in self._claims[kind].items())

    def names(self, kind: Kind | str) -> tuple[str, ...]:
        """Return the names that parts of `kind` can be asked for by, sorted; `PACKAGE:NAME` where one is ambiguous."""
        return tuple(self._claims[Kind(kind)])

    def specs(self, kind: Kind | str) -> tuple[ComponentSpec, ...]:
        """Return the specs of one kind, sorted by name (a name that is claimed twice gives all its claims)."""
        return self._claims[Kind(kind)].items()

    def get(self, kind: Kind | str, name: str) -> ComponentSpec:
        """Return the spec of the part that `NAME` or `PACKAGE:NAME` means.

        Raises UnknownNameError (with the closest known name), or DrkitError where the name is ambiguous.
        """
        return self._claims[Kind(kind)].get(name)

    def name_of(self, spec: ComponentSpec) -> str:
        """Return the shortest name that means this part: `NAME`, or `PACKAGE:NAME` where that is another's."""
        return self._claims[spec.kind].name_of(spec)

    def clashes(self, kind: Kind | str) -> tuple[str, ...]:
        """Return a sentence for each name of `kind` that several packages claim."""
        return self._claims[Kind(kind)].clashes()

    def split(self, kind: Kind | str, text: str) -> tuple[ComponentSpec, str | None]:
        """Return the part and the VALUE of `NAME`, `NAME:VALUE`, `PACKAGE:NAME` or `PACKAGE:NAME:VALUE`.

        Before the first colon stands, in this order of preference: a part of drkit's own that takes a VALUE; a
        package, if it has a part of the name that follows; a part. Raises as `get` does, and DrkitError for a VALUE
        behind a part that takes none.
        """
        head, colon, rest = text.partition(":")
        name, more, value = rest.partition(":")
        specs = self.specs(kind)
        own = any(s.name == head and s.shorthand and package_of(s.provider) == OWN for s in specs)
        if colon and not own and f"{package_of(head)}:{name}" in map(full_name, specs):
            spec, given = self.get(kind, f"{head}:{name}"), value if more else None
        else:
            spec, given = self.get(kind, head), rest if colon else None
        if given is not None and not spec.shorthand:
            raise DrkitError(
                f"the {spec.kind} {spec.name!r} takes no value after a colon; write `{self.name_of(spec)}`"
            )
        return spec, given

    def build(self, kind: Kind | str, name: str, config: Any = None, context: Any = None) -> Any:
        """Build one part: `target(config, context)`, with the default config where none is given."""
        spec = self.get(kind, name)
        settings = spec.config() if config is None else config
        if not isinstance(settings, spec.config):
            raise DrkitError(f"{spec.kind} {name!r} takes {spec.config.__name__}, got {type(settings).__name__}")
        return spec.load()(settings, context)
