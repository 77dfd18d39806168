"""Systems against systems, query by query: who wins where, by how much, and whether that is more than luck.

Every comparison that is made counts in Holm's correction: pairs of systems times measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from attrs import evolve, frozen

from drkit.errors import DrkitError
from drkit.evaluate.measures import Scores
from drkit.evaluate.significance import TTest, holm, paired_t_test
from drkit.evaluate.table import LEVEL, p_text


@frozen
class Change:
    """One query whose value differs: what it was under the baseline, and what it is."""

    query_id: str
    before: float
    after: float


@frozen
class Versus:
    """A system against a baseline by one measure.

    test: the paired t-test of system minus baseline, with the confidence interval of the mean difference; corrected:
    its p by Holm over all comparisons made. wins, ties, losses: queries where the system is better, as good, worse.
    gained, lost: the queries that differ most, the largest difference first.
    """

    system: str
    baseline: str
    measure: str
    value: float
    against: float
    test: TTest
    corrected: float
    wins: int
    ties: int
    losses: int
    gained: tuple[Change, ...]
    lost: tuple[Change, ...]


def compare(
    systems: Sequence[tuple[str, Scores]],
    measures: Sequence[str] | None = None,
    *,
    all_pairs: bool = False,
    shown: int = 5,
) -> list[Versus]:
    """Every system against the first (all_pairs: against every one before it), by each measure.

    systems: (name, scores), evaluated on the same queries; measures: those of the first system where None; shown: how
    many queries `gained` and `lost` name at most.

    Raises DrkitError for fewer than two systems, a name given twice, different queries, or a missing measure.

    >>> bm25 = Scores({"RR@10": {"q1": 0.5, "q2": 1.0, "q3": 0.0}})
    >>> dense = Scores({"RR@10": {"q1": 1.0, "q2": 1.0, "q3": 0.5}})
    >>> (found,) = compare([("BM25", bm25), ("dense", dense)])
    >>> found.wins, found.ties, found.losses, found.gained[0]
    (2, 1, 0, Change(query_id='q1', before=0.5, after=1.0))
    """
    names = tuple(measures) if measures is not None else (systems[0][1].measures if systems else ())
    _check(systems, names)
    pairs = combinations(systems, 2) if all_pairs else ((systems[0], other) for other in systems[1:])
    found = [_versus(pair[0], pair[1], measure, shown) for pair in pairs for measure in names]
    corrected = holm([one.test.p for one in found])
    return [evolve(one, corrected=p) for one, p in zip(found, corrected, strict=True)]


def versus_markdown(found: Sequence[Versus], texts: Mapping[str, str] | None = None) -> str:
    """All comparisons in a table, and the queries that differ most; texts: query id -> text, where it is known."""
    lines = [
        "| measure | system | against | difference | 95 % interval | p | p (Holm) | wins | ties | losses |",
        "|---|---|---|---:|---|---|---|---:|---:|---:|",
        *(f"| {' | '.join(map(_cell, _row(one)))} |" for one in found),
        "",
        f"{meaning(found)}",
    ]
    for one in found:
        for what, changes in (("gains", one.gained), ("losses", one.lost)):
            if changes:
                lines += ["", f"{one.measure}, largest {what} of {one.system} against {one.baseline}:", ""]
                lines += [f"- {line}" for line in change_lines(changes, texts or {})]
    return "\n".join(lines)


def meaning(found: Sequence[Versus]) -> str:
    """What was tested, in a sentence."""
    queries = found[0].test.queries if found else 0
    return (
        f"Paired two-tailed t-tests over {queries:,} queries; Holm's correction over all {len(found)} comparisons "
        f"made; * where the corrected p is below {LEVEL}."
    )


def change_lines(changes: Sequence[Change], texts: Mapping[str, str]) -> Iterator[str]:
    """`+0.500 (0.500 -> 1.000) q1: the query's text`, a line a query."""
    for change in changes:
        text = " ".join(texts.get(change.query_id, "").split())
        told = f"{change.query_id}: {text}" if text else change.query_id
        yield f"{change.after - change.before:+.3f} ({change.before:.3f} -> {change.after:.3f}) {told}"


def _row(one: Versus) -> list[str]:
    star = "*" if one.corrected < LEVEL else ""
    return [
        one.measure,
        f"{one.system} ({one.value:.3f})",
        f"{one.baseline} ({one.against:.3f})",
        f"{one.test.difference:+.3f}",
        interval(one.test),
        p_text(one.test.p),
        f"{p_text(one.corrected)}{star}",
        *map(str, (one.wins, one.ties, one.losses)),
    ]


def interval(test: TTest) -> str:
    """Where the mean difference lies; empty where it was not tested."""
    return "" if test.low != test.low else f"{test.low:+.3f} .. {test.high:+.3f}"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _check(systems: Sequence[tuple[str, Scores]], measures: Sequence[str]) -> None:
    if len(systems) < 2:
        raise DrkitError(f"{len(systems)} system to compare; give two at least")
    names = [name for name, _ in systems]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DrkitError(f"two systems are called {twice!r}; give each a name of its own")
    for name, scores in systems:
        missing = [measure for measure in measures if measure not in scores.per_query]
        if missing:
            raise DrkitError(f"{name!r} was not evaluated by {', '.join(missing)}; evaluate all by the same measures")


def _versus(baseline: tuple[str, Scores], system: tuple[str, Scores], measure: str, shown: int) -> Versus:
    before, after = baseline[1].per_query[measure], system[1].per_query[measure]
    test = paired_t_test(after, before)
    changes = sorted((Change(q, before[q], after[q]) for q in after if after[q] != before[q]), key=_order)
    wins = sum(change.after > change.before for change in changes)
    losses = len(changes) - wins
    return Versus(
        system=system[0],
        baseline=baseline[0],
        measure=measure,
        value=system[1].mean(measure),
        against=baseline[1].mean(measure),
        test=test,
        corrected=test.p,
        wins=wins,
        ties=test.queries - len(changes),
        losses=losses,
        gained=tuple(changes[: min(shown, wins)]),
        lost=tuple(reversed(changes[len(changes) - min(shown, losses) :])),
    )


def _order(change: Change) -> tuple[float, str]:
    return change.before - change.after, change.query_id
