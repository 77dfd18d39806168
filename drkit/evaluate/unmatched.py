"""Why ids of a run do not occur in the judgements: another case, leading zeros, a prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile

import numpy as np
from attrs import frozen

from drkit.search.rankings import Rankings

# Queries with a judged hit below which a run is said to match few judgements.
_FEW = 0.1
# Ids of each side that are compared.
_COMPARED = 1_000_000
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")


@frozen
class LikelyMatch:
    """A way in which ids would match, in words, the number that would, and an id of each side that would."""

    how: str
    count: int
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.count:,} would match {self.how}, such as {self.ours!r:.80} and {self.theirs!r:.80}"


def likely_match(ours: Iterable[str], theirs: Iterable[str]) -> LikelyMatch | None:
    """Return the way in which at least twice as many ids of both sides are equal as are now; None without one.

    >>> print(likely_match(["D7", "D8", "d9"], ["d7", "d8", "d9"]))
    3 would match without regard to case, such as 'D7' and 'd7'
    >>> print(likely_match(["msmarco_7"], ["7"]))
    1 would match without their prefix, such as 'msmarco_7' and '7'
    """
    one, two = sorted({*ours})[:_COMPARED], sorted({*theirs})[:_COMPARED]
    now, best = len({*one} & {*two}), None
    cut = _cutter(one), _cutter(two)
    ways: Mapping[str, tuple[Callable[[str], str], Callable[[str], str]]] = {
        "without regard to case": (str.casefold, str.casefold),
        "without leading zeros": (_without_zeros, _without_zeros),
        "without their prefix": cut,
        "without prefix, case and leading zeros": (
            lambda name: _without_zeros(cut[0](name).casefold()),
            lambda name: _without_zeros(cut[1](name).casefold()),
        ),
    }
    for how, (read, read_other) in ways.items():
        known = {read_other(name): name for name in two}
        found = [(name, known[read(name)]) for name in one if read(name) in known]
        if len(found) > max(2 * now - 1, best.count if best else 0):
            pair = next((pair for pair in found if pair[0] != pair[1]), found[0])
            best = LikelyMatch(how, len(found), *pair)
    return best


def _without_zeros(name: str) -> str:
    return _ZEROS.sub("", name)


def _cutter(names: list[str]) -> Callable[[str], str]:
    """Return the function that cuts what all names begin with, up to a digit; names: sorted."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*names[:1], *names[-1:], strict=False))
    prefix = "".join(character for character, _ in same)
    length = len(re.split(r"\d", prefix)[0] if len(names) == 1 else prefix.rstrip("0123456789"))
    return lambda name: name[length:] or name


def note_unjudged_hits(rankings: Rankings, judged: Mapping[str, Mapping[str, int]], source: object) -> str:
    """Say that no hit is judged, or few are and more would match by other ids; empty if all is well.

    judged: the judged documents of each query. Only queries of both count.
    """
    rows = {query: row for row, query in enumerate(rankings.query_ids) if query in judged}
    pairs = [(row, doc_id) for query, row in rows.items() for doc_id in judged[query]]
    queries = np.array([row for row, _ in pairs], np.int64)
    documents = [doc_id for _, doc_id in pairs]
    matched = len({*queries[np.isfinite(rankings.ranks(queries, documents))].tolist()})
    if not pairs or matched > _FEW * len(rows):
        return ""
    hits = {name for row in rows.values() for name in rankings.names(row)}
    likely = likely_match(hits, documents)
    if not hits or (matched and likely is None):
        return ""
    few = f"only {matched:,} of the {len(rows):,} judged queries have" if matched else "no judged query has"
    example = f"hits have ids such as {min(hits)!r:.80}, judged documents {min(documents)!r:.80}"
    advice = f"{likely}: change the ids of one file" if likely else "give the judgements of the collection searched"
    return f"{source}: {few} a judged hit; {example}; {advice}"
