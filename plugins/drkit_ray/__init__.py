"""The engine `ray`: the data work of a run on the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence

from drkit.plugin import Extension, hookimpl


@hookimpl
def drkit_engines() -> Sequence[Extension]:
    """Return the engine that carries out tasks on a cluster."""
    return [Extension("ray", "drkit_ray.engine:open_ray", "Machines of a Ray cluster", packages=("ray",))]
