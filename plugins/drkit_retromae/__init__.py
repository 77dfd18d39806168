"""RetroMAE: an aggressive one-layer decoder that rebuilds every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.decoders.config import EnhancedConfig
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

RETROMAE = Citation(
    key="xiao2022retromae",
    title="RetroMAE: Pre-Training Retrieval-oriented Language Models Via Masked Auto-Encoder",
    year=2022,
    url="https://arxiv.org/abs/2205.12035",
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """The enhanced decoder."""
    return [
        ComponentSpec(
            kind=Kind.DECODER,
            name="enhanced",
            target="drkit.decoders.enhanced:EnhancedDecoder",
            config=EnhancedConfig,
            summary="One layer, two streams; every token from its own random context",
            cite=RETROMAE,
            needs=("rows",),
            provides=("token_states",),
        )
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """The paper's recipe, and its ablation without enhanced decoding."""
    folder = files("drkit_retromae") / "recipes"
    return {name: folder / f"{name}.toml" for name in ("retromae", "retromae-basic")}
