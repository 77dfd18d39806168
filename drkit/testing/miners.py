"""The contract of a negative miner: it streams, repeats itself, and never returns a judged positive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.testing.specs import check_spec, require, spec_of
from drkit.testing.toys import ToyCorpus, toy_context, toy_requests

MANY, HELD = 3000, 1500


def check_miner(part: ComponentSpec | str | Callable[[], Any], config: Any = None) -> None:
    """Run the miner contract on a spec, an installed name, or a function that makes a miner.

    Judged positives, repetitions and unknown ids never come back; scores fall; answers stand in the requests'
    order and are the same in another run and beside other requests; fewer hits than asked for are no error; of
    a stream of requests only a part is held; asked before `index` it says so.
    """
    if isinstance(part, (ComponentSpec, str)):
        spec = spec_of(Kind.MINER, part)
        check_spec(spec)
        name = spec.name

        def make() -> Any:
            return spec.load()(spec.config() if config is None else config, toy_context())
    else:
        make, name = part, getattr(part, "__name__", "miner")
    _check_before_index(make(), name)
    for depth in (1, 5, 100):
        _check_answers(make, depth, name)
    _check_alone(make, name)
    _check_stream(make, name)


def _indexed(make: Callable[[], Any]) -> Any:
    miner = make()
    miner.index(ToyCorpus())
    return miner


def _check_before_index(miner: Any, name: str) -> None:
    try:
        next(iter(miner.mine(toy_requests(1), 1)))
    except DrkitError:
        return
    raise AssertionError(f"{name}: mining before index(corpus) is no DrkitError")


def _check_answers(make: Callable[[], Any], depth: int, name: str) -> None:
    requests = list(toy_requests(50))
    answers = list(_indexed(make).mine(iter(requests), depth))
    require([a.query_id for a in answers] == [r.query_id for r in requests], f"{name}: answers are not in order")
    known = {passage.doc_id for passage in ToyCorpus()}
    for request, mined in zip(requests, answers, strict=True):
        check_mined(request, mined, depth, known, name)
    require(any(a.doc_ids for a in answers), f"{name}: finds nothing")
    require(answers == list(_indexed(make).mine(iter(requests), depth)), f"{name}: another run gives other negatives")


def check_mined(request: MiningRequest, mined: Mined, depth: int, known: set[str], name: str) -> None:
    """Check the negatives of one query: known ids, each once, none judged relevant, at most `depth`, falling scores."""
    ids = mined.doc_ids
    require(not request.positives & set(ids), f"{name}: {mined.query_id} has a judged positive among its negatives")
    require(len(ids) == len(set(ids)), f"{name}: {mined.query_id} has a passage twice")
    require(len(ids) <= depth, f"{name}: {mined.query_id} has {len(ids)} negatives, asked for {depth}")
    require(set(ids) <= known, f"{name}: {mined.query_id} has an id that is not in the corpus")
    require(len(mined.scores) == len(ids), f"{name}: {mined.query_id} has {len(mined.scores)} scores")
    require(list(mined.scores) == sorted(mined.scores, reverse=True), f"{name}: scores do not fall")


def _check_alone(make: Callable[[], Any], name: str) -> None:
    requests = list(toy_requests(9))
    together = list(_indexed(make).mine(iter(requests), 5))
    alone = [next(iter(_indexed(make).mine([request], 5))).doc_ids for request in requests]
    require(alone == [mined.doc_ids for mined in together], f"{name}: an answer depends on the requests beside it")


def _check_stream(make: Callable[[], Any], name: str) -> None:
    taken = 0

    def counted() -> Iterator[MiningRequest]:
        nonlocal taken
        for request in toy_requests(MANY):
            taken += 1
            yield request

    next(iter(_indexed(make).mine(counted(), 5)))
    require(taken <= HELD, f"{name}: took {taken} requests before the first answer; stream them")
