"""CDMAE: hide the most informative tokens from the decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.core.citations import CDMAE
from drkit.maskers.specs import PmiConfig
from drkit.plugin import ComponentSpec, Kind, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the masker by pointwise mutual information."""
    return [
        ComponentSpec(
            kind=Kind.MASKER,
            name="pmi",
            target="drkit.maskers.pmi:PmiMasker",
            config=PmiConfig,
            summary="Hides the most informative tokens from the decoder",
            cite=CDMAE,
            signals=("importance",),
            provides=("view", "rows"),
        )
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the paper's recipe."""
    return {"cdmae": files("drkit_cdmae") / "recipes" / "cdmae.toml"}
