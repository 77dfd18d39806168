"""CDMAE: hide the most informative tokens from the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.plugin import hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the paper's recipe."""
    return {"cdmae": files("drkit_cdmae") / "recipes" / "cdmae.toml"}
