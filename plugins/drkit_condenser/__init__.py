"""Condenser: a head that reads token states of a lower layer and the vector of the top layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from attrs import frozen
from attrs.validators import optional

from drkit.plugin import Citation, ComponentSpec, Kind, at_least, hookimpl, setting

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

CONDENSER = Citation(
    key="gao2021condenser",
    title="Condenser: a Pre-training Architecture for Dense Retrieval",
    year=2021,
    url="https://arxiv.org/abs/2104.08253",
)


@frozen
class CondenserConfig:
    """Settings of `CondenserDecoder`: a head on the top layer's vector and a lower layer's token states."""

    layers: int = setting(2, at_least(1, 512), "transformer layers")
    skip_from: int | None = setting(
        None,
        optional(at_least(0)),
        "encoder layer whose token states it reads; 0: the embeddings; none: the middle one",
    )


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the Condenser head."""
    return [
        ComponentSpec(
            kind=Kind.DECODER,
            name="condenser",
            target="drkit_condenser.decoder:CondenserDecoder",
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
