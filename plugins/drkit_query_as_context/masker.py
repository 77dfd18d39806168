"""Give the passage to the encoder and a related text to the decoder: a query, another span, or the passage itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from drkit.plugin import BuildContext, DrkitError, Kind, ReplacingMasker, TokenBatch, Views, installed
from drkit_query_as_context import QueryAsContextConfig

if TYPE_CHECKING:
    from drkit.plugin import Draws


class QueryAsContextMasker:
    """Masks the text for the encoder and its context (`TokenBatch.context`) for the decoder, with a base masker.

    The context is drawn for this epoch when the batch is made: a query of the passage, or another span of its document.
    With `context = "self"` both views are of the text itself.

    Source: Query-as-context section 3.1 (Wu et al. 2023); spans as in coCondenser and CoT-MAE; `mixed`, its table 4.
    """

    def __init__(self, config: QueryAsContextConfig, context: BuildContext) -> None:
        self.config = config
        self._base = _base_masker(config, context)
        if isinstance(self._base, ReplacingMasker):
            self.replacer = self._base.replacer

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0) -> Views:
        """Return two views of a batch, the decoder's of the contexts: with `rows` > 0, a visibility pattern.

        Raises DrkitError if the batch has no contexts, or not one per text.
        """
        if self.config.context == "self":
            views: Views = self._base(attrs.evolve(tokens, context=None), rng, rows=rows)
            return views
        context = _context(tokens, self.config.context)
        encoder = self._base.encoder_view(tokens, rng)
        return Views(encoder=encoder, decoder=self._base.decoder_view(context, rng, rows), context=context)


def _context(tokens: TokenBatch, kind: str) -> TokenBatch:
    if tokens.context is None:
        raise DrkitError(
            f"the masker 'query-as-context' with context = {kind!r} needs a context for every text, but the batch has "
            f"none. In a run, stages make them; in your own loop, pass TokenBatch.context, as from "
            f"drkit.data.contexts.open_contexts(..).batch(positions, epoch, seed)"
        )
    if len(tokens.context.ids) != len(tokens.ids):
        raise DrkitError(
            f"expected one context per text, got {len(tokens.context.ids)} contexts for {len(tokens.ids)} texts"
        )
    return tokens.context


def _base_masker(config: QueryAsContextConfig, context: BuildContext) -> Any:
    """Return the base masker, with the settings that it has in common with this one (None: its default)."""
    registry = installed().registry
    base = registry.get(Kind.MASKER, config.base).config
    given = {a.name: getattr(config, a.name, None) for a in attrs.fields(base)}
    settings = {name: value for name, value in given.items() if value is not None}
    return registry.build(Kind.MASKER, config.base, base(**settings), context)
