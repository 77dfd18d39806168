"""Query-as-context: the decoder rebuilds a query of the passage, or another span of its document."""

from __future__ import annotations

from collections.abc import Sequence

from drkit.maskers.config import QueryAsContextConfig
from drkit.plugin import Citation, ComponentSpec, Kind, hookimpl

QUERY_AS_CONTEXT = Citation(
    key="wu2023queryascontext",
    title="Query-as-context Pre-training for Dense Passage Retrieval",
    year=2023,
    url="https://arxiv.org/abs/2212.09598",
)


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """The masker whose decoder rebuilds another text."""
    return [
        ComponentSpec(
            kind=Kind.MASKER,
            name="query-as-context",
            target="drkit.maskers.query_as_context:QueryAsContextMasker",
            config=QueryAsContextConfig,
            summary="Another text for the decoder: a query, a span, or itself",
            cite=QUERY_AS_CONTEXT,
            provides=("view",),
        )
    ]
