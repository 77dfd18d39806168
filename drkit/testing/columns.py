"""The contract of a column: a number for each query, passage or pair, the same each time."""

from __future__ import annotations

from typing import Any

from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import Query
from drkit.data.values import PAIR, PASSAGE, QUERY, Value, computed_values
from drkit.testing.specs import build, check_spec, require, running, spec_of
from drkit.testing.toys import ToyCorpus, toy_requests

QUERIES, PASSAGES = 5, 3


def check_column(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the contract of columns on a spec or the name of an installed part, with default settings or `config`.

    `values(items)` must yield a finite number, a bool or None for each query, passage or pair (by the spec's scope), in
    order, and the same for the same items. Not all of them may be None, and bools and numbers must not be mixed.
    """
    spec = spec_of(Kind.COLUMN, part)
    check_spec(spec)
    settings = spec.config() if config is None else config
    source = build(spec, settings, None)
    require(hasattr(source, "values"), f"{spec.name}: {type(source).__name__} has no method values")
    scope = spec.scope_of(settings)
    with running(spec.name, f"computing values of {scope}s"):
        found, again = (check_values(source, scope, spec.name) for _ in range(2))
    require(found == again, f"{spec.name}: a second call gives other values of the same {scope}s")


def check_values(source: Any, scope: str, name: str) -> list[Value]:
    """Return what a part computes for toy items; raises ContractError or DrkitError unless they are values."""
    queries = [Query(one.query_id, one.text) for one in toy_requests(QUERIES)]
    passages = list(ToyCorpus())[:PASSAGES]
    pairs = [(query, passage) for query in queries for passage in passages]
    items: dict[str, list[Any]] = {QUERY: queries, PASSAGE: passages, PAIR: pairs}
    found = list(computed_values(name, source, scope, items[scope]))
    require(found, f"{name}: every value is None; expected a number for some {scope}s")
    kinds = {isinstance(value.value, bool) for value in found}
    require(len(kinds) == 1, f"{name}: values must be bools or numbers, not both")
    return found
