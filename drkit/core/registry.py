"""The registry: an immutable value that maps (kind, name) to a spec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from drkit.core.claims import OWN, Claims, full_name, package_of
from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import DrkitError


class Registry:
    """All parts that can be named in a recipe; immutable once made.

    Where packages claim one name, it means drkit's own part; `PACKAGE:NAME` names any (`drkit.core.claims`).
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
