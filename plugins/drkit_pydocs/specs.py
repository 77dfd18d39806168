"""The default collection: its settings and spec; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen
from attrs.validators import and_, gt, lt, optional

from drkit.plugin import ComponentSpec, Kind, at_least, hookimpl, setting


@frozen
class PydocsConfig:
    """Settings of `PydocsCollection`: which packages to read, and what counts as a query and a passage."""

    packages: tuple[str, ...] = setting((), None, "only these packages (empty: all installed ones)")
    min_query_words: int = setting(3, at_least(1), "minimum number of words of a query")
    max_query_words: int = setting(40, at_least(1), "maximum number of words of a query")
    min_passage_words: int = setting(8, at_least(1), "minimum number of words of a passage")
    dev_share: float = setting(0.05, and_(gt(0), lt(0.5)), "share of modules for dev")
    test_share: float = setting(0.10, and_(gt(0), lt(0.5)), "share of modules for test")
    limit: int | None = setting(None, optional(at_least(1)), "maximum number of modules, drawn by hash")


@hookimpl
def drkit_components() -> Sequence[ComponentSpec]:
    """Return the collection `pydocs`, which drkit's recipes read if none is named."""
    return [
        ComponentSpec(
            kind=Kind.COLLECTION,
            name="pydocs",
            target="drkit_pydocs.collection:PydocsCollection",
            config=PydocsConfig,
            summary="Docstrings of the installed Python packages: find the function",
            provides=("texts", "queries", "judgements"),
        )
    ]
