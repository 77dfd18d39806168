"""Why parts do not go together, in words: what is missing, who has it, what would fit."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from drkit.core.registry import Registry
from drkit.core.spec import ComponentSpec, Kind


def fitting(registry: Registry, kind: Kind, receives: Iterable[str]) -> str:
    """Which parts of a kind provide these."""
    wanted = set(receives)
    names = [registry.name_of(spec) for spec in registry.specs(kind) if wanted <= set(spec.provides)]
    return f"{kind}s that fit: {', '.join(names) or 'none'}"


def losses_for(registry: Registry, provided: Iterable[str]) -> str:
    """Which losses receive no more than this."""
    names = [registry.name_of(s) for s in registry.specs(Kind.LOSS) if s.receives and {*s.receives} <= {*provided}]
    return f"losses that fit: {', '.join(names) or 'none'}"


def missing_extras(spec: ComponentSpec) -> list[str]:
    """A line for every package that a part needs and that is not installed."""
    absent = [extra for extra in spec.extras if find_spec(extra) is None]
    return [f"{spec.kind} {spec.name!r} needs the package {name!r}, which is not installed" for name in absent]


def listed(names: Iterable[str]) -> str:
    """`a and b and c`, or `nothing`."""
    return " and ".join(names) or "nothing"
