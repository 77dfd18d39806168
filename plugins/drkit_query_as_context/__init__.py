"""Query-as-context, and the methods it is applied to: coCondenser and CoT-MAE, each with spans and with queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from drkit.decoders.specs import AutoregressiveBlockConfig
from drkit.losses.specs import SpanContrastiveConfig
from drkit.maskers.specs import QueryAsContextConfig
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

QUERY_AS_CONTEXT = Citation(
    key="wu2023queryascontext",
    title="Query-as-context Pre-training for Dense Passage Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2212.09598",
)
COCONDENSER = Citation(
    key="gao2022cocondenser",
    title="Unsupervised Corpus Aware Language Model Pre-training for Dense Passage Retrieval",
    year=2022,
    url="https://arxiv.org/abs/2108.05540",
)
RECIPES = ("cocondenser", "cocondenser-qac", "cotmae", "cotmae-qac", "cotmae-qac-ar")


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the masker whose decoder rebuilds another text, the contrast of two texts, the authors' causal head."""
    return [
        ComponentSpec(
            kind=Kind.MASKER,
            name="query-as-context",
            target="drkit.maskers.query_as_context:QueryAsContextMasker",
            config=QueryAsContextConfig,
            summary="Another text for the decoder: a query, a span, or itself",
            cite=QUERY_AS_CONTEXT,
            provides=("view", "rows"),
        ),
        ComponentSpec(
            kind=Kind.DECODER,
            name="autoregressive-block",
            target="drkit.decoders.autoregressive:AutoregressiveBlockDecoder",
            config=AutoregressiveBlockConfig,
            summary="The next token by one pre-LN block, from the last few",
            cite=QUERY_AS_CONTEXT,
            provides=("token_states",),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="span-contrastive",
            target="drkit.losses.self_contrastive:SpanContrastiveLoss",
            config=SpanContrastiveConfig,
            summary="Two texts find each other's vector; raw dot products",
            cite=COCONDENSER,
            receives=("bottleneck", "partners"),
            scope="batch",
        ),
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the recipes of coCondenser and CoT-MAE, each with spans of documents and with queries."""
    folder = files("drkit_query_as_context") / "recipes"
    return {name: folder / f"{name}.toml" for name in RECIPES}
