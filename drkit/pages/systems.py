"""The table of systems: means with bootstrap intervals, and tests against a baseline of the reader's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from drkit.errors import DrkitError, did_you_mean
from drkit.evaluate.measures import Scores
from drkit.evaluate.significance import RESAMPLES, bootstrap_intervals
from drkit.evaluate.systems import LEVEL, Versus, compare, p_text
from drkit.pages.records import RunRecord, is_comparable
from drkit.report import SYSTEM_NAMES


@frozen
class ReportedSystem:
    """A system of the page: its name there, the run it belongs to, its name in that run, and its values per query."""

    name: str
    run: RunRecord
    system: str
    scores: Scores


@frozen
class Cell:
    """One value of the table as text: the mean, its interval, and the test against the baseline (empty for itself).

    verdict: `better` or `worse` if the difference is significant after correction, else empty.
    """

    mean: str
    interval: str
    difference: str = ""
    test: str = ""
    verdict: str = ""


@frozen
class Row:
    """One system against one baseline: a cell per measure, and its wins, ties and losses by the first measure."""

    system: str
    cells: tuple[Cell, ...]
    wins: int = 0
    ties: int = 0
    losses: int = 0


@frozen
class SystemTable:
    """Rows of all systems for each baseline; `chosen` is the index of the baseline that is shown first."""

    measures: tuple[str, ...]
    queries: int
    names: tuple[str, ...]
    chosen: int
    bodies: tuple[tuple[Row, ...], ...]
    intervals: Mapping[str, Sequence[tuple[float, float]]]
    means: Mapping[str, Sequence[float]]

    @property
    def caption(self) -> str:
        """How intervals and tests were computed."""
        return (
            f"In brackets: 95 % intervals of the mean, by percentile bootstrap over the {self.queries:,} queries "
            f"({RESAMPLES:,} resamples). Below: the difference to the baseline with its p-value from a paired "
            f"two-tailed t-test, corrected by Holm over all tests against this baseline; \u25b2 and \u25bc mark "
            f"corrected p < {LEVEL}. Wins, ties and losses count queries by {self.measures[0]}."
        )


def systems_of(runs: Sequence[RunRecord]) -> list[ReportedSystem]:
    """Return the systems that a page compares: all of a single run; of several, BM25 and each run's exported retriever.

    None if the runs were evaluated on different queries.
    """
    if not is_comparable(runs):
        return []
    if len(runs) == 1:
        names = runs[0].scores
        return [ReportedSystem(SYSTEM_NAMES.get(n, n), runs[0], n, scores) for n, scores in names.items()]
    found = [ReportedSystem(SYSTEM_NAMES["bm25"], runs[0], "bm25", runs[0].scores["bm25"])] if _share_bm25(runs) else []
    for run in runs:
        if run.results is not None:
            compared = run.results.compared
            found.append(ReportedSystem(run.name, run, compared, run.scores[compared]))
    return found


def _share_bm25(runs: Sequence[RunRecord]) -> bool:
    found = [run.scores["bm25"].per_query for run in runs if "bm25" in run.scores]
    return len(found) == len(runs) and all(one == found[0] for one in found)


def baseline_index(systems: Sequence[ReportedSystem], wanted: str | None) -> int:
    """Return the index of the baseline: the one that is asked for, by either name, or BM25, or the first system.

    Raises DrkitError if no system has that name.
    """
    for index, system in enumerate(systems):
        if (wanted or "bm25") in (system.name, system.system):
            return index
    if wanted is not None and systems:
        names = [system.name for system in systems]
        raise DrkitError(
            f"unknown baseline {wanted!r}{did_you_mean(wanted, names)} systems of this report: {', '.join(names)}"
        )
    return 0


def system_table(systems: Sequence[ReportedSystem], chosen: int) -> SystemTable:
    """Return the table of at least one system; chosen: the index of the baseline to show first."""
    measures = systems[0].scores.measures
    intervals = {m: bootstrap_intervals([one.scores.per_query[m] for one in systems]) for m in measures}
    return SystemTable(
        measures=measures,
        queries=systems[0].scores.queries,
        names=tuple(one.name for one in systems),
        chosen=chosen,
        bodies=tuple(_body(systems, index, intervals) for index in range(len(systems))),
        intervals=intervals,
        means={m: [one.scores.mean(m) for one in systems] for m in measures},
    )


def _body(
    systems: Sequence[ReportedSystem], baseline: int, intervals: Mapping[str, Sequence[tuple[float, float]]]
) -> tuple[Row, ...]:
    """Return a row per system, tested against one of them."""
    others = [(one.name, one.scores) for index, one in enumerate(systems) if index != baseline]
    named = [(systems[baseline].name, systems[baseline].scores), *others]
    tests = {(one.system, one.measure): one for one in compare(named)} if others else {}
    rows = []
    for index, one in enumerate(systems):
        cells = tuple(
            _cell(one.scores.mean(m), intervals[m][index], tests.get((one.name, m))) for m in one.scores.measures
        )
        first = tests.get((one.name, one.scores.measures[0]))
        rows.append(Row(one.name, cells, *((first.wins, first.ties, first.losses) if first else ())))
    return tuple(rows)


def _cell(mean: float, interval: tuple[float, float], versus: Versus | None) -> Cell:
    low, high = interval
    bounds = "" if low != low else f"{low:.3f}\u2013{high:.3f}"
    if versus is None:
        return Cell(f"{mean:.3f}", bounds)
    is_significant = versus.corrected < LEVEL
    return Cell(
        mean=f"{mean:.3f}",
        interval=bounds,
        difference=f"{versus.test.difference:+.3f}",
        test=p_text(versus.corrected),
        verdict=("better" if versus.test.difference > 0 else "worse") if is_significant else "",
    )


def interval_points(table: SystemTable) -> list[dict[str, Any]]:
    """Return the means and intervals as rows of a chart: system, measure, mean, low, high."""
    return [
        {"system": name, "measure": measure, "mean": table.means[measure][index], "low": low, "high": high}
        for measure in table.measures
        for index, name in enumerate(table.names)
        for low, high in [table.intervals[measure][index]]
    ]
