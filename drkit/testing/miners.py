"""The contracts of miners: sources find negatives and never a judged positive; filters only drop candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import Mined, MiningRequest
from drkit.errors import DrkitError
from drkit.testing.specs import build as build_part
from drkit.testing.specs import checked_spec, require, running, spec_of
from drkit.testing.toys import ToyCorpus, toy_context, toy_requests

# Of a stream of so many requests, a miner may read so many before its first answer.
STREAM, MAX_READ_AHEAD = 3000, 1500
_Pair = tuple[MiningRequest, Mined]
Item = TypeVar("Item")


def check_miner(part: ComponentSpec | str | Callable[[], Any], config: Any = None) -> None:
    """Run the contract of sources on a spec, the name of an installed part, or a function that builds a source.

    Judged positives, repeated and unknown ids are never returned; scores descend; answers follow the order of the
    requests, and are the same in a second run and without the other requests; fewer hits than requested are not an
    error; a stream of requests is not read to its end before the first answer; mining before `index` raises DrkitError.
    """
    build, name = _builder(part, config)
    with running(name, "mining before index(corpus)"):
        _check_before_index(build(), name)
    with running(name, "mining"):
        for depth in (1, 5, 100):
            _check_answers(build, depth, name)
        requests = list(toy_requests(9))
        together = list(_indexed(build).mine(iter(requests), 5))
        alone = [next(iter(_indexed(build).mine([request], 5))).doc_ids for request in requests]
        require(alone == [mined.doc_ids for mined in together], f"{name}: an answer depends on the other requests")
        require(list(_indexed(build).mine([], 5)) == [], f"{name}: returns answers although it got no requests")
        _check_streaming(partial(_indexed(build).mine, depth=5), toy_requests(STREAM), name)


def _builder(part: ComponentSpec | str | Callable[[], Any], config: Any) -> tuple[Callable[[], Any], str]:
    """Return a function that builds the part, and the part's name; a spec is checked first."""
    if not isinstance(part, (ComponentSpec, str)):
        return part, getattr(part, "__name__", "miner")
    spec, config = checked_spec(Kind.MINER, part, config)
    return lambda: build_part(spec, config, toy_context()), spec.name


def _indexed(build: Callable[[], Any]) -> Any:
    miner = build()
    miner.index(ToyCorpus())
    return miner


def _check_before_index(miner: Any, name: str) -> None:
    try:
        next(iter(miner.mine(toy_requests(1), 1)))
    except DrkitError:
        return
    raise AssertionError(f"{name}: mining before index(corpus) must raise DrkitError")


def _check_answers(build: Callable[[], Any], depth: int, name: str) -> None:
    requests = list(toy_requests(50))
    answers = list(_indexed(build).mine(iter(requests), depth))
    check_negatives(requests, answers, depth, name)
    require(any(a.doc_ids for a in answers), f"{name}: finds no negatives")
    again = list(_indexed(build).mine(iter(requests), depth))
    require(answers == again, f"{name}: a second run gives different negatives")


def check_negatives(requests: Sequence[MiningRequest], answers: Sequence[Any], depth: int, name: str) -> None:
    """Check a source's answers for the toy corpus: one for each request, in order; see `_check_mined`."""
    _check_order([request.query_id for request in requests], answers, name)
    known_ids = {passage.doc_id for passage in ToyCorpus()}
    for request, mined in zip(requests, answers, strict=True):
        _check_mined(request, mined, depth, known_ids, name)


def check_kept(pairs: Sequence[_Pair], answers: Sequence[Any], name: str) -> None:
    """Check a filter's answers: one for each query, in order; see `_check_one_kept`."""
    _check_order([mined.query_id for _, mined in pairs], answers, name)
    for (_, before), after in zip(pairs, answers, strict=True):
        _check_one_kept(before, after, name)


def _check_order(query_ids: list[str], answers: Sequence[Any], name: str) -> None:
    wrong = next((type(answer).__name__ for answer in answers if not isinstance(answer, Mined)), None)
    require(wrong is None, f"{name}: an answer must be Mined, got {wrong}")
    found = [answer.query_id for answer in answers]
    require(
        found == query_ids,
        f"{name}: answers are not in order: expected results for {', '.join(query_ids)}, got {', '.join(found)}",
    )


def _check_mined(request: MiningRequest, mined: Mined, depth: int, known_ids: set[str], name: str) -> None:
    """Check one query's negatives: known ids, each once, none judged relevant, at most `depth`, descending scores."""
    ids = mined.doc_ids
    require(not request.positives & set(ids), f"{name}: {mined.query_id} has a judged positive among its negatives")
    require(len(ids) == len(set(ids)), f"{name}: {mined.query_id} has a passage twice")
    require(len(ids) <= depth, f"{name}: {mined.query_id} has {len(ids)} negatives, expected at most {depth}")
    require(set(ids) <= known_ids, f"{name}: {mined.query_id} has an id that is not in the corpus")
    require(
        len(mined.scores) == len(ids), f"{name}: {mined.query_id} has {len(mined.scores)} scores, expected {len(ids)}"
    )
    require(list(mined.scores) == sorted(mined.scores, reverse=True), f"{name}: scores do not descend")


def check_filter(part: ComponentSpec | str | Callable[[], Any], config: Any = None) -> None:
    """Run the contract of filters on a spec, the name of an installed part, or a function that builds a filter.

    Each query is answered, in order; what is returned are some of its candidates, in their order, with unchanged
    scores; each dropped candidate is counted once, on top of the counts that came in; answers are the same in a second
    run and without the other queries; queries without candidates, and positives that the corpus lacks, are not an
    error; a stream is not read to its end before the first answer.
    """
    build, name = _builder(part, config)
    if isinstance(part, (ComponentSpec, str)):
        receives = spec_of(Kind.MINER, part).receives
        require("candidates" in receives, f"{name}: the spec of a filter must have receives=('candidates',)")
    with running(name, "filtering"):
        _check_filtering(build, name)


def _check_filtering(build: Callable[[], Any], name: str) -> None:
    pairs = list(toy_candidates(50))
    kept = list(build().keep(iter(pairs), ToyCorpus()))
    check_kept(pairs, kept, name)
    require(kept == list(build().keep(iter(pairs), ToyCorpus())), f"{name}: a second run keeps different candidates")
    alone = [next(iter(build().keep([pair], ToyCorpus()))) for pair in pairs]
    require(alone == kept, f"{name}: an answer depends on the other queries")
    require(list(build().keep([], ToyCorpus())) == [], f"{name}: returns answers although it got no queries")
    _check_streaming(partial(build().keep, corpus=ToyCorpus()), toy_candidates(STREAM), name)


def toy_candidates(count: int) -> Iterator[_Pair]:
    """Yield queries with candidates of descending scores; some have none, some a positive that the corpus lacks."""
    ids = [passage.doc_id for passage in ToyCorpus()]
    for number, request in enumerate(toy_requests(count)):
        if number % 7 == 3:
            request = evolve(request, positives=frozenset({f"nowhere {number}"}))
        found = [] if number % 5 == 4 else [d for d in ids if d not in request.positives][number % 3 :][:20]
        scores = tuple(10.0 - rank for rank in range(len(found)))
        positives = {doc_id: 8.5 for doc_id in sorted(request.positives) if doc_id in ids}
        yield request, Mined(request.query_id, tuple(found), scores, positives, {"earlier": 2})


def _check_one_kept(before: Mined, after: Mined, name: str) -> None:
    """Check which of one query's candidates a filter keeps, and how it counts the others."""
    scores_before = dict(zip(before.doc_ids, before.scores, strict=True))
    query = after.query_id
    require(
        len(after.doc_ids) == len(after.scores),
        f"{name}: {query} has {len(after.scores)} scores, expected {len(after.doc_ids)}",
    )
    require(set(after.doc_ids) <= scores_before.keys(), f"{name}: {query} has a candidate that did not come in")
    order = [doc_id for doc_id in before.doc_ids if doc_id in set(after.doc_ids)]
    require(list(after.doc_ids) == order, f"{name}: {query} has its candidates in a different order")
    unchanged = all(scores_before[d] == s for d, s in zip(after.doc_ids, after.scores, strict=True))
    require(unchanged, f"{name}: scores change")
    require(after.positive_scores == before.positive_scores, f"{name}: the positives' scores change")
    missing = len(before.doc_ids) - len(after.doc_ids)
    counted = sum(after.dropped.values()) - sum(before.dropped.values())
    require(missing == counted, f"{name}: {query} lost {missing} candidates, but {counted} are counted as dropped")
    require(after.dropped.get("earlier") == 2, f"{name}: {query} lost the counts that came in")


def _check_streaming(answer: Callable[[Iterator[Item]], Iterable[Mined]], items: Iterator[Item], name: str) -> None:
    read = 0

    def counted() -> Iterator[Item]:
        nonlocal read
        for item in items:
            read += 1
            yield item

    next(iter(answer(counted())))
    require(read <= MAX_READ_AHEAD, f"{name}: read {read} queries before its first answer; it must stream them")
