"""SEED: a weak decoder from left to right, which needs the vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.decoders.specs import AutoregressiveConfig
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SEED = Citation(
    key="lu2021seed",
    title="Less is More: Pre-train a Strong Text Encoder for Dense Retrieval Using a Weak Decoder",
    year=2021,
    url="https://arxiv.org/abs/2102.09206",
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the decoder with a restricted window."""
    return [
        ComponentSpec(
            kind=Kind.DECODER,
            name="autoregressive",
            target="drkit.decoders.autoregressive:AutoregressiveDecoder",
            config=AutoregressiveConfig,
            summary="The next token from the bottleneck and the last few tokens",
            cite=SEED,
            provides=("token_states",),
        )
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the paper's recipe."""
    return {"seed": files("drkit_seed") / "recipes" / "seed.toml"}
