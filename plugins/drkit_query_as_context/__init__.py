"""Query-as-context, and the methods it is applied to: coCondenser and CoT-MAE, each with spans and with queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attrs import frozen
from attrs.validators import and_, gt, in_, lt, optional

from drkit.core.citations import QUERY_AS_CONTEXT
from drkit.plugin import (
    Citation,
    ComponentSpec,
    GeneratorSettings,
    Kind,
    NoSettings,
    QuerySettings,
    at_least,
    hookimpl,
    query_source,
    setting,
    shares,
)

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
    """Settings of `QueryAsContextMasker` (Query-as-context, sections 3.1 and 5)."""

    context: str = setting("query", in_(("self", "span", "query", "mixed")), "the text that the decoder rebuilds")
    base: str = setting("uniform", in_(("uniform", "pmi", "generator")), "the masker of passage and context")
    variant: str = setting("frozen", in_(("frozen", "joint", "joint-random")), "for base = generator: how it learns")
    model: str = setting("", None, "for base = generator: path or hub id; empty: the run trains one")
    candidates: int = setting(5, at_least(1), "maximum number of queries per passage; each epoch draws one")
    queries: str = setting("extractive", query_source, "extractive, file:PATH, or model:PATH_OR_ID of a seq2seq model")
    query_prefix: str = setting("", None, "put before each passage for the model, as in 'text2query: '")
    encoder_ratio: float = setting(0.3, and_(gt(0), lt(1)), "share of tokens hidden from the encoder")
    decoder_ratio: float = setting(0.5, and_(gt(0), lt(1)), "share of the context's tokens hidden from the decoder")
    mask_token_share: tuple[float, float, float] | None = setting(
        None, optional(shares), "shares of the hidden tokens: made [MASK], made random, kept; none: as the base does"
    )

    @property
    def reads_queries(self) -> bool:
        """Whether any context is a query."""
        return self.context in ("query", "mixed")

    @property
    def signals(self) -> Mapping[str, Mapping[str, Any]]:
        """The signal `importance`, if it decides what is hidden or picks extractive queries."""
        return {"importance": {}} if self.base == "pmi" or self.reads_queries else {}

    @property
    def requires(self) -> Mapping[str, Any]:
        """What the run must provide for these settings."""
        required: dict[str, Any] = {"spans": None} if self.context in ("span", "mixed") else {}
        if self.reads_queries:
            required["generated-queries"] = QuerySettings(self.queries, self.candidates, self.query_prefix)
        if self.base == "generator":
            required["generator"] = GeneratorSettings(model=self.model, random=self.variant == "joint-random")
        return required

    @property
    def provides(self) -> tuple[str, ...]:
        """What the masker provides with these settings, besides `view` and `rows`."""
        replaced = ("replaced",) if self.base == "generator" else ()
        return (*replaced, *(() if self.context == "self" else ("context",)))


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the masker whose decoder rebuilds another text, and the contrast of two texts."""
    return [
        ComponentSpec(
            kind=Kind.MASKER,
            name="query-as-context",
            target="drkit_query_as_context.masker:QueryAsContextMasker",
            config=QueryAsContextConfig,
            summary="Another text for the decoder: a query, a span, or itself",
            cite=QUERY_AS_CONTEXT,
            provides=("view", "rows"),
        ),
        ComponentSpec(
            kind=Kind.LOSS,
            name="span-contrastive",
            target="drkit_query_as_context.loss:SpanContrastiveLoss",
            config=NoSettings,
            summary="InfoNCE between a text and its context, by dot product",
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
