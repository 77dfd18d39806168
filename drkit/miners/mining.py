"""Mining in one call, for those who bring a corpus, queries and a retriever of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from drkit.core.discovery import installed
from drkit.core.protocols import Corpus, NegativeFilter, NegativeMiner
from drkit.core.registry import Registry
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, Mined, MiningRequest
from drkit.errors import DrkitError, ProblemsError
from drkit.miners.chain import Chain, build_chain
from drkit.recipe.assign import assign
from drkit.recipe.compose import part_table
from drkit.recipe.read import problems_of, recipe_converter
from drkit.recipe.schema import Choice, MinerChoice


def mine(
    corpus: Corpus,
    requests: Iterable[MiningRequest],
    miners: Sequence[str | NegativeMiner | NegativeFilter],
    *,
    depth: int | None = None,
    settings: Sequence[str] = (),
    context: BuildContext | None = None,
) -> Iterator[Mined]:
    """Hard negatives of each request, streamed in the requests' order; a judged positive is never among them.

    corpus: passages by id (`drkit.data.open_collection(folder).corpus`, or any `Corpus`). miners: a source, then
    filters: names as on the command line (`bm25`, `ranks:10-100`) with their settings (`margin.absolute=0.1`), or
    objects of your own. depth: negatives a query at most; None: as deep as the source's ranking is read. context: what
    parts are built with: `retriever` for dense, `reranker` for cross-encoder-filter, `negatives` for given, `seed`.

    Raises DrkitError where the chain cannot be built, UnknownNameError for a name that nothing has.

    >>> from drkit.testing.toys import ToyCorpus, toy_requests
    >>> found = next(mine(ToyCorpus(), toy_requests(1), ["bm25", "ranks:1-2"]))
    >>> found.query_id, found.doc_ids, found.dropped
    ('q0', ('d2', 'd3'), {'judged-positive': 2, 'ranks': 36})
    """
    parts = [part for part in miners if not isinstance(part, str)]
    if not parts:
        names = [part for part in miners if isinstance(part, str)]
        registry = installed().registry
        chain = build_chain(chain_named(names, settings, registry), registry, context or BuildContext())
    elif len(parts) < len(miners) or not _is_chain(parts):
        raise DrkitError("give the miners all as names or all as objects: a source with `mine`, filters with `keep`")
    else:
        source, *filters = parts
        chain = Chain(source, filters)  # type: ignore[arg-type]
    chain.index(corpus)
    return chain.mine(requests, depth or chain.depth)


def _is_chain(parts: Sequence[Any]) -> bool:
    return isinstance(parts[0], NegativeMiner) and all(isinstance(part, NegativeFilter) for part in parts[1:])


def chain_named(names: Sequence[str], settings: Sequence[str], registry: Registry) -> tuple[Choice, ...]:
    """Miners by name, `NAME` or `NAME:VALUE`, with settings `NAME.SETTING=VALUE`.

    Raises UnknownNameError, ProblemsError for settings that do not fit, DrkitError for one of a miner not chosen.
    """
    tables = [part_table(Kind.MINER, name, registry) for name in names]
    by_name: dict[str, Any] = {}
    for table in tables:
        by_name.setdefault(table["use"], table)
    for assignment in settings:
        owner = assignment.partition("=")[0].partition(".")[0].strip()
        if owner not in by_name:
            raise DrkitError(
                f"--set {assignment}: no miner {owner!r} is chosen; chosen: {', '.join(by_name) or 'none'}"
            )
        assign(by_name, assignment)
    converter = recipe_converter(registry)
    try:
        made: tuple[Choice, ...] = converter.structure(tables, tuple[MinerChoice, ...])
    except Exception as error:
        named = [_by_name(problem, [table["use"] for table in tables]) for problem in problems_of(error)]
        raise ProblemsError("miners", named) from None
    return made


def _by_name(problem: str, names: Sequence[str]) -> str:
    """A problem's place by the miner's name: `recipe[0].depth` is `bm25.depth`."""
    return re.sub(r"@ recipe\[(\d+)\]", lambda found: f"@ {names[int(found[1])]}", problem)


def wanted_by(choices: Sequence[Choice], registry: Registry) -> frozenset[str]:
    """What the miners of a chain need of their context."""
    return frozenset(
        name for choice in choices for name in registry.get(Kind.MINER, choice.use).requires_of(choice.config)
    )
