"""CDMAE: the decoder loses the tokens that carry the most information."""

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
    """The masker by pointwise mutual information."""
    return [
        ComponentSpec(
            kind=Kind.MASKER,
            name="pmi",
            target="drkit.maskers.pmi:PmiMasker",
            config=PmiConfig,
            summary="Hides from the decoder the tokens that carry most information",
            cite=CDMAE,
            signals=("importance",),
            provides=("view", "rows"),
        )
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """The paper's recipe."""
    return {"cdmae": files("drkit_cdmae") / "recipes" / "cdmae.toml"}
