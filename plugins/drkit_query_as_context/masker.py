"""Query-as-context as a masker: the decoder rebuilds a query of the encoder's text, hidden by any other masker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drkit.plugin import BuildContext, Kind, registry_of

if TYPE_CHECKING:
    from drkit_query_as_context import QueryAsContextConfig


def query_as_context(config: QueryAsContextConfig, context: BuildContext) -> Any:
    """Return the masker that hides tokens of the queries: the base masker.

    In a recipe, the context `query` brings the queries, another one of each text in every epoch. In your own loop, call
    the masker with a batch of queries, as it would be called with a batch of texts.

    Source: Query-as-context (Wu et al. 2023), section 3.
    """
    return registry_of(context).build(Kind.MASKER, config.base.use, config.base.config, context)
