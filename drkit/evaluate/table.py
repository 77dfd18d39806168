"""The table at the end of a run: systems by measures, each tested against the row above.

A table is many tests at once: a star marks those that hold after Holm's correction over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from drkit.errors import DrkitError
from drkit.evaluate.measures import Scores
from drkit.evaluate.significance import TTest, holm, paired_t_test

LEVEL = 0.05
MEANING = (
    "In brackets: paired two-tailed t-test against the row above; "
    "* where p stays below 0.05 after Holm's correction over all tests of the table."
)


def meaning(draws: Mapping[str, int]) -> str:
    """What stands in a table, in words; draws: of how many draws a system's row is the mean.

    >>> meaning({"retriever-100": 3, "retriever-1k": 3}).rpartition("table. ")[2]
    'Means of several draws: retriever-100 (3), retriever-1k (3).'
    """
    several = ", ".join(f"{name} ({count})" for name, count in draws.items() if count > 1)
    return f"{MEANING} Means of several draws: {several}." if several else MEANING


@frozen
class Row:
    """One system: its means, and per measure the test against the row above (empty for the first).

    corrected: the p of each test after Holm's correction over all tests of the table.
    """

    system: str
    values: Mapping[str, float]
    tests: Mapping[str, TTest]
    queries: int
    corrected: Mapping[str, float] = field(factory=dict)


def comparison(systems: Sequence[tuple[str, Scores]], measures: Sequence[str] | None = None) -> list[Row]:
    """A row per (name, scores), in the order given; measures: those of the first system where None.

    Raises DrkitError where the systems were evaluated on different queries, or one lacks a measure.
    """
    names = tuple(measures) if measures is not None else (systems[0][1].measures if systems else ())
    for system, scores in systems:
        missing = [name for name in names if name not in scores.per_query]
        if missing:
            raise DrkitError(f"{system!r} was not evaluated by {', '.join(missing)}; evaluate all by the same measures")
    return _corrected([_row(systems, place, names) for place in range(len(systems))])


def to_markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table; what stands in brackets, `MEANING` says.

    >>> a = Scores({"RR@10": {"q1": 0.5, "q2": 1.0, "q3": 0.0}})
    >>> b = Scores({"RR@10": {"q1": 1.0, "q2": 1.0, "q3": 0.5}})
    >>> print(to_markdown(comparison([("BM25", a), ("retriever-1", b)])))
    | system | RR@10 |
    |---|---|
    | BM25 | 0.500 |
    | retriever-1 | 0.833 (p = 0.184) |
    """
    measures = list(rows[0].values) if rows else []
    lines = [["system", *measures], *([row.system, *(cell(row, m) for m in measures)] for row in rows)]
    text = [f"| {' | '.join(item.replace('|', chr(92) + '|') for item in line)} |" for line in lines]
    return "\n".join([text[0], "|---" * (len(measures) + 1) + "|", *text[1:]])


def cell(row: Row, measure: str) -> str:
    """One value, and the p of its test where there is one."""
    test = row.tests.get(measure)
    tested = None if test is None else test.p
    return cell_text(row.values[measure], tested, row.corrected.get(measure, math.nan))


def cell_text(value: float, p: float | None, corrected: float = math.nan) -> str:
    """A value, the p of its test where there is one, and a star where that holds after correction.

    >>> cell_text(0.5, None), cell_text(0.5, 0.02, 0.04), cell_text(0.5, 0.02, 0.06)
    ('0.500', '0.500 (p = 0.020*)', '0.500 (p = 0.020)')
    """
    star = "*" if corrected < LEVEL else ""
    return f"{value:.3f}" if p is None else f"{value:.3f} ({p_text(p)}{star})"


def stored_cell(row: Mapping[str, Any], measure: str) -> str:
    """`cell` of a row as a manifest has it: a p that was no number is null there.

    >>> stored_cell({"values": {"AP": 0.5}, "tests": {"AP": {"p": None}}, "corrected": {"AP": None}}, "AP")
    '0.500 (not tested)'
    """
    test, corrected = row["tests"].get(measure), row.get("corrected", {}).get(measure)
    p = None if test is None else _number(test["p"])
    return cell_text(row["values"][measure], p, _number(corrected))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def p_text(p: float) -> str:
    """A p as it is read.

    >>> p_text(0.0004), p_text(0.25), p_text(float("nan"))
    ('p < 0.001', 'p = 0.250', 'not tested')
    """
    if math.isnan(p):
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _row(systems: Sequence[tuple[str, Scores]], place: int, measures: Sequence[str]) -> Row:
    name, scores = systems[place]
    tests = {}
    if place:
        above = systems[place - 1][1]
        tests = {m: paired_t_test(scores.per_query[m], above.per_query[m]) for m in measures}
    return Row(name, {m: scores.mean(m) for m in measures}, tests, scores.queries)


def _corrected(rows: Sequence[Row]) -> list[Row]:
    tests = [(place, measure, test.p) for place, row in enumerate(rows) for measure, test in row.tests.items()]
    found: list[dict[str, float]] = [{} for _ in rows]
    for (place, measure, _), p in zip(tests, holm([p for *_, p in tests]), strict=True):
        found[place][measure] = p
    return [evolve(row, corrected=own) for row, own in zip(rows, found, strict=True)]
