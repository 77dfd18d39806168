"""The table `[pseudo_queries]` of a recipe: from which sources training queries are made, and which are kept."""

from __future__ import annotations

from typing import Annotated, Any

from attrs import field, frozen
from attrs.validators import optional

from drkit.core.settings import at_least, setting
from drkit.core.spec import Choice, Kind, NoSettings
from drkit.data.query_sources import CROPS, EXTRACTIVE, QUERY_SOURCES, brief_sources

QueriesChoice = Annotated[Choice, Kind.QUERIES]
_FINDERS = ("bm25", "encoder")


def _query_sources(_instance: Any, attribute: Any, value: tuple[Choice, ...]) -> None:
    """Validate sources of pseudo-queries."""
    if not value or any(source in value[:index] for index, source in enumerate(value)):
        named = ", ".join(source.use for source in value) or "none"
        raise ValueError(f"'{attribute.name}' must name at least one source, each once, got {named}")


def _finders(_instance: Any, attribute: Any, value: tuple[str, ...]) -> None:
    """Validate the retrievers of the round trip."""
    if not value or len({*value}) < len(value) or not {*value} <= {*_FINDERS}:
        raise ValueError(f"'{attribute.name}' must name {' or '.join(_FINDERS)} or both, each once, got {value}")


@frozen
class PseudoQueries:
    """Training queries made from the passages: rounds with `pairs = "pseudo"` learn from them, not from judgements."""

    sources: tuple[QueriesChoice, ...] = field(
        default=(Choice(EXTRACTIVE, NoSettings()), Choice(CROPS, NoSettings())),
        validator=_query_sources,
        metadata={"help": QUERY_SOURCES, "written": brief_sources},
    )
    count: int = setting(
        3,
        at_least(1),
        "maximum queries per passage from each source; files and parts of plugins have their own",
    )
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
