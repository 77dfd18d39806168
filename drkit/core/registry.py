"""The registry: an immutable value that maps (kind, name) to a spec."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from drkit.core.spec import ComponentSpec, Kind
from drkit.errors import DrkitError, UnknownNameError


class Registry:
    """All parts that can be named in a recipe; immutable once made.

    Two providers may claim one name: only asking for that name fails, and the error names both.

    >>> from drkit.builtin import drkit_components
    >>> registry = Registry(drkit_components())
    >>> registry.get("masker", "uniform").name
    'uniform'
    """

    def __init__(self, specs: Iterable[ComponentSpec]) -> None:
        table: dict[tuple[Kind, str], list[ComponentSpec]] = {}
        for spec in specs:
            table.setdefault((spec.kind, spec.name), []).append(spec)
        self._table = {key: tuple(claims) for key, claims in table.items()}

    def __iter__(self) -> Iterator[ComponentSpec]:
        return (spec for key in sorted(self._table) for spec in self._table[key])

    def names(self, kind: Kind | str) -> tuple[str, ...]:
        """The names registered under `kind`, sorted."""
        return tuple(sorted(name for k, name in self._table if k == Kind(kind)))

    def specs(self, kind: Kind | str) -> tuple[ComponentSpec, ...]:
        """The specs of one kind, sorted by name (an ambiguous name gives all its claims)."""
        return tuple(spec for spec in self if spec.kind == Kind(kind))

    def get(self, kind: Kind | str, name: str) -> ComponentSpec:
        """The spec of one part.

        Raises UnknownNameError (with the closest known name), or DrkitError where two providers claim it.
        """
        kind = Kind(kind)
        claims = self._table.get((kind, name), ())
        if not claims:
            raise UnknownNameError(kind.value, name, self.names(kind))
        if len(claims) > 1:
            owners = " and ".join(sorted(c.provider or "unknown" for c in claims))
            raise DrkitError(
                f"the {kind} name {name!r} is claimed by {owners}; uninstall one of them, "
                f"or ask its author to rename the part"
            )
        return claims[0]

    def build(self, kind: Kind | str, name: str, config: Any = None, context: Any = None) -> Any:
        """Build one part: `target(config, context)`, with the default config where none is given."""
        spec = self.get(kind, name)
        settings = spec.config() if config is None else config
        if not isinstance(settings, spec.config):
            raise DrkitError(f"{spec.kind} {name!r} takes {spec.config.__name__}, got {type(settings).__name__}")
        return spec.load()(settings, context)
