"""Condenser: a head that reads token states of a lower layer and the vector of the top layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.decoders.specs import CondenserConfig
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

CONDENSER = Citation(
    key="gao2021condenser",
    title="Condenser: a Pre-training Architecture for Dense Retrieval",
    year=2021,
    url="https://arxiv.org/abs/2104.08253",
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the Condenser head."""
    return [
        ComponentSpec(
            kind=Kind.DECODER,
            name="condenser",
            target="drkit.decoders.condenser:CondenserDecoder",
            config=CondenserConfig,
            summary="Rebuilds the encoder's targets from its vector and a lower layer",
            cite=CONDENSER,
            provides=("token_states",),
        )
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the paper's recipe."""
    return {"condenser": files("drkit_condenser") / "recipes" / "condenser.toml"}
