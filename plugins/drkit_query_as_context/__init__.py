"""Query-as-context, and the methods it is applied to: coCondenser and CoT-MAE, each with spans and with queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from attrs import frozen

from drkit.core.citations import QUERY_AS_CONTEXT
from drkit.maskers import UniformConfig
from drkit.plugin import Choice, Citation, ComponentSpec, Kind, MaskerChoice, NoSettings, hookimpl, setting

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

COCONDENSER = Citation(
    key="gao2022cocondenser",
    title="Unsupervised Corpus Aware Language Model Pre-training for Dense Passage Retrieval",
    year=2022,
    url="https://arxiv.org/abs/2108.05540",
)
RECIPES = ("cocondenser", "cocondenser-qac", "cotmae", "cotmae-qac", "cotmae-qac-ar")


@frozen
class QueryAsContextConfig:
    """Settings of the masker `query-as-context`."""

    base: MaskerChoice = setting(Choice("uniform", UniformConfig()), None, "the masker of the queries")


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the masker of queries, and the contrast of two texts."""
    return [
        ComponentSpec(
            kind=Kind.MASKER,
            name="query-as-context",
            target="drkit_query_as_context.masker:query_as_context",
            config=QueryAsContextConfig,
            summary="Tokens of a query of the text, which the decoder rebuilds",
            cite=QUERY_AS_CONTEXT,
            requires=("generated-queries",),
            provides=("view", "rows"),
            context="query",
            shorthand="base",
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="span-contrastive",
            target="drkit_query_as_context.loss:SpanContrastiveLoss",
            config=NoSettings,
            summary="InfoNCE between a text and its context, by dot product",
            cite=COCONDENSER,
            receives=("bottleneck", "partners"),
        ),
    ]


@hookimpl
def drkit_recipes() -> Mapping[str, Traversable]:
    """Return the recipes of coCondenser and CoT-MAE, each with spans of documents and with queries."""
    folder = files("drkit_query_as_context") / "recipes"
    return {name: folder / f"{name}.toml" for name in RECIPES}
