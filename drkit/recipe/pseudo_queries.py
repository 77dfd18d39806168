"""The table `[pseudo_queries]` of a recipe: from which sources training queries are made, and which are kept."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from attrs.validators import optional

from drkit.core.settings import at_least, setting

_FREE_SOURCES = ("extractive", "crops", "sentences", "titles")
_FINDERS = ("bm25", "encoder")


def _query_sources(_instance: Any, attribute: Any, value: tuple[str, ...]) -> None:
    """Validate sources of pseudo-queries."""
    for source in value:
        kind, colon, rest = source.partition(":")
        if source not in _FREE_SOURCES and not (kind in ("file", "model") and colon and rest.strip()):
            raise ValueError(
                f"'{attribute.name}' must be {', '.join(_FREE_SOURCES)}, file:PATH or model:PATH_OR_ID, got {source!r}"
            )
    if not value or len({*value}) < len(value):
        raise ValueError(f"'{attribute.name}' must name at least one source, each once, got {value}")


def _finders(_instance: Any, attribute: Any, value: tuple[str, ...]) -> None:
    """Validate the retrievers of the round trip."""
    if not value or len({*value}) < len(value) or not {*value} <= {*_FINDERS}:
        raise ValueError(f"'{attribute.name}' must name {' or '.join(_FINDERS)} or both, each once, got {value}")


@frozen
class PseudoQueries:
    """Training queries made from the passages: rounds with `pairs = "pseudo"` learn from them, not from judgements."""

    sources: tuple[str, ...] = setting(
        ("extractive", "crops"),
        _query_sources,
        "extractive, crops, sentences, titles, file:PATH, or model:PATH_OR_ID of a seq2seq model",
    )
    count: int = setting(3, at_least(1), "maximum queries per passage from each source")
    prefix: str = setting("", None, "put before each passage for a model, as in 'text2query: '")
    round_trip: int = setting(
        10, at_least(0), "keep queries whose passage a retriever of found_by finds within this many; 0: keep all"
    )
    found_by: tuple[str, ...] = setting(
        ("bm25",), _finders, "retrievers of the round trip: bm25, encoder (that fine-tuning starts from)"
    )
    passages: int | None = setting(
        None, optional(at_least(1)), "make training queries from this many passages, drawn at random; none: from all"
    )
    held_out: int | None = setting(
        None,
        optional(at_least(1)),
        "make no training queries from this many passages, drawn at random, but one query each to evaluate on "
        "(evaluation.split = pseudo)",
    )

    @property
    def searches_with_encoder(self) -> bool:
        """Whether the round trip needs the encoder that fine-tuning starts from."""
        return self.round_trip > 0 and "encoder" in self.found_by
