"""The three hooks a plugin may implement; both return data and change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from drkit.core.spec import ComponentSpec

PROJECT = "drkit"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def drkit_components() -> Sequence[ComponentSpec]:  # type: ignore[empty-body]
    """The parts this plugin adds."""


@hookspec
def drkit_recipes() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """The recipes this plugin adds: a name, and the TOML file that holds it."""


@hookspec
def drkit_pipelines() -> Mapping[str, Traversable]:  # type: ignore[empty-body]
    """The fine-tuning pipelines this plugin adds: a name, and a TOML file with [finetune] and, maybe, [reranker]."""
