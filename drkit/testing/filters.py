"""The contract of a filter of negatives: it streams, adds nothing, keeps the order, and counts what it drops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve

from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import Mined, MiningRequest
from drkit.testing.specs import check_spec, require, spec_of
from drkit.testing.toys import ToyCorpus, toy_context, toy_requests

MANY, HELD = 3000, 1500
Pair = tuple[MiningRequest, Mined]


def check_filter(part: ComponentSpec | str | Callable[[], Any], config: Any = None) -> None:
    """Run the contract of filters on a spec, an installed name, or a function that makes a filter.

    Each query is answered, in the order given; what is left are some of its candidates, in their order, with their
    own scores; every candidate that goes is counted once, beside the counts that came in; the answer is the same in
    another run and beside other queries; queries without candidates, and positives that the corpus lacks, are no
    error; of a stream only a part is held.
    """
    if isinstance(part, (ComponentSpec, str)):
        spec = spec_of(Kind.MINER, part)
        check_spec(spec)
        require("candidates" in spec.receives, f"{spec.name}: a filter's spec has receives=('candidates',)")
        name = spec.name

        def make() -> Any:
            return spec.load()(spec.config() if config is None else config, toy_context())
    else:
        make, name = part, getattr(part, "__name__", "filter")
    pairs = list(toy_candidates(50))
    kept = list(make().keep(iter(pairs), ToyCorpus()))
    require([k.query_id for k in kept] == [m.query_id for _, m in pairs], f"{name}: answers are not in order")
    for (_, before), after in zip(pairs, kept, strict=True):
        check_kept(before, after, name)
    require(kept == list(make().keep(iter(pairs), ToyCorpus())), f"{name}: another run leaves others")
    alone = [next(iter(make().keep([pair], ToyCorpus()))) for pair in pairs]
    require(alone == kept, f"{name}: an answer depends on the queries beside it")
    require(list(make().keep([], ToyCorpus())) == [], f"{name}: answers where nothing was asked")
    _check_stream(make, name)


def toy_candidates(count: int) -> Iterator[Pair]:
    """Queries with candidates of falling scores, some with none, some with a positive that is nowhere."""
    ids = [passage.doc_id for passage in ToyCorpus()]
    for number, request in enumerate(toy_requests(count)):
        if number % 7 == 3:
            request = evolve(request, positives=frozenset({f"nowhere {number}"}))
        found = [] if number % 5 == 4 else [d for d in ids if d not in request.positives][number % 3 :][:20]
        scores = tuple(10.0 - place for place in range(len(found)))
        positives = {doc_id: 8.5 for doc_id in sorted(request.positives) if doc_id in ids}
        yield request, Mined(request.query_id, tuple(found), scores, positives, {"earlier": 2})


def check_kept(before: Mined, after: Mined, name: str) -> None:
    """Check what a filter leaves of the candidates of one query."""
    own = dict(zip(before.doc_ids, before.scores, strict=True))
    query = after.query_id
    require(len(after.doc_ids) == len(after.scores), f"{name}: {query} has not one score a candidate")
    require(set(after.doc_ids) <= own.keys(), f"{name}: {query} has a candidate that did not come in")
    order = [doc_id for doc_id in before.doc_ids if doc_id in set(after.doc_ids)]
    require(list(after.doc_ids) == order, f"{name}: {query} has its candidates in another order")
    require(all(own[d] == s for d, s in zip(after.doc_ids, after.scores, strict=True)), f"{name}: scores change")
    require(after.positive_scores == before.positive_scores, f"{name}: the positives' scores change")
    gone = len(before.doc_ids) - len(after.doc_ids)
    counted = sum(after.dropped.values()) - sum(before.dropped.values())
    require(gone == counted, f"{name}: {query} lost {gone} candidates, and {counted} are counted")
    require(after.dropped.get("earlier") == 2, f"{name}: {query} lost the counts that came in")


def _check_stream(make: Callable[[], Any], name: str) -> None:
    taken = 0

    def counted() -> Iterator[Pair]:
        nonlocal taken
        for pair in toy_candidates(MANY):
            taken += 1
            yield pair

    next(iter(make().keep(counted(), ToyCorpus())))
    require(taken <= HELD, f"{name}: took {taken} queries before the first answer; stream them")
