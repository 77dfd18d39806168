"""SEED: a weak decoder from left to right, which needs the vector; and the causal head in Query-as-context's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from attrs import frozen

from drkit.core.citations import QUERY_AS_CONTEXT
from drkit.plugin import Citation, ComponentSpec, Kind, at_least, hookimpl, setting

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SEED = Citation(
    key="lu2021seed",
    title="Less is More: Pre-train a Strong Text Encoder for Dense Retrieval Using a Weak Decoder",
    year=2021,
    url="https://arxiv.org/abs/2102.09206",
)


@frozen
class AutoregressiveConfig:
    """Settings of `AutoregressiveDecoder`: the next token from the vector and a few tokens before it (SEED)."""

    layers: int = setting(3, at_least(1, 512), "transformer layers")
    window: int = setting(
        2, at_least(0), "tokens a position sees, itself included, besides the bottleneck; 0: all up to it"
    )
    end_token: bool = setting(False, None, "whether the text's last token ([SEP]) is a target too")


@frozen
class AutoregressiveBlockConfig:
    """Settings of `AutoregressiveBlockDecoder`: one causal layer, as in Query-as-context's code."""

    window: int = setting(
        3, at_least(0), "tokens a position sees, itself included, besides the bottleneck; 0: all up to it"
    )
    end_token: bool = setting(True, None, "whether the text's last token ([SEP]) is a target too")


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the decoders with a restricted window."""
    return [
        ComponentSpec(
            kind=Kind.DECODER,
            name="autoregressive",
            target="drkit_seed.decoder:AutoregressiveDecoder",
            config=AutoregressiveConfig,
            summary="The next token from the bottleneck and the last few tokens",
            cite=SEED,
            provides=("token_states",),
        ),
        ComponentSpec(
            kind=Kind.DECODER,
            name="autoregressive-block",
            target="drkit_seed.decoder:AutoregressiveBlockDecoder",
            config=AutoregressiveBlockConfig,
            summary="The next token by one pre-LN block, from the last few",
            cite=QUERY_AS_CONTEXT,
            provides=("token_states",),
        ),
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the paper's recipe."""
    return {"seed": files("drkit_seed") / "recipes" / "seed.toml"}
