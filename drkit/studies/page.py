"""The page of a study, in Markdown, and its picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drkit.charts import Intervals, draw_png
from drkit.core.escaping import escape_markdown
from drkit.evaluate.effects import Effect
from drkit.evaluate.names import system_name
from drkit.evaluate.systems import LEVEL, format_p
from drkit.studies.design import Design

if TYPE_CHECKING:
    from drkit.studies.results import Table

_METHOD = """An effect is the difference of two levels of an axis, for each seed and query, averaged over the levels \
of the other axes. An interaction is the effect of a part together with another, minus its effect with the other's \
baseline. {interval} p is corrected for the effects of a table (Holm)."""
_ONE_SEED = "The 95 % interval is a t interval over queries alone: with one seed, it says nothing about other seeds."
_SEEDS = """The 95 % interval treats both seeds and queries as random: a t interval whose variance is the mean square \
of seeds plus that of queries minus the rest's (two-way layout, Satterthwaite's degrees of freedom)."""


def headline(tables: Sequence[Table]) -> list[str]:
    """Return a sentence for each main effect, with the most labels: what a level adds, with its interval."""
    last = tables[-1]
    return [
        f"{last.title}: {describe_effect(effect, last.measure)}" for effect in last.effects if not effect.is_interaction
    ]


def describe_effect(effect: Effect, measure: str) -> str:
    """Say what a level adds, with its interval, and whether it is shown."""
    found = effect.estimate
    verdict = "" if effect.corrected < LEVEL else " (no difference shown)"
    return f"{effect}: {format_change(found.mean)} {measure}, {_format_interval(found.low, found.high)}{verdict}"


def format_change(value: float) -> str:
    """Format a difference with its sign.

    >>> format_change(0.0123), format_change(-0.5), format_change(0.0)
    ('+0.012', '-0.500', '+0.000')
    """
    return f"{value + 0.0:+.3f}"


def _format_interval(low: float, high: float) -> str:
    """Format an interval.

    >>> _format_interval(-0.01, 0.0213), _format_interval(float("nan"), float("nan"))
    ('-0.010 to +0.021', 'no interval')
    """
    return "no interval" if math.isnan(low) else f"{format_change(low)} to {format_change(high)}"


def effect_cells(effect: Effect) -> tuple[str, str, str, str]:
    """Return an effect as the cells of a row: in words, its mean, its interval, and the corrected p."""
    found = effect.estimate
    return str(effect), format_change(found.mean), _format_interval(found.low, found.high), format_p(effect.corrected)


def draw_effects(tables: Sequence[Table], seeds: int, path: Path) -> Path:
    """Draw the effects with their intervals, a panel for each table."""
    names = [str(effect) for effect in tables[0].effects]
    estimates = {table.title: [(one.estimate.mean, *_ends(one)) for one in table.effects] for table in tables}
    over = "queries; one seed" if seeds == 1 else f"queries and {seeds} seeds"
    return draw_png(Intervals(f"Effects on {tables[0].measure}, 95 % intervals over {over}", names, estimates), path)


def _ends(effect: Effect) -> tuple[float, float]:
    found = effect.estimate
    return (found.mean, found.mean) if math.isnan(found.low) else (found.low, found.high)


def study_page(design: Design, tables: Sequence[Table], picture: str) -> str:
    """Return a study as Markdown: its design, a table per collection, and a picture."""
    seeds = ", ".join(map(str, design.seeds))
    axes = "; ".join(f"{axis}: {', '.join(levels)}" for axis, levels in design.axes.items())
    interval = _ONE_SEED if len(design.seeds) == 1 else _SEEDS
    lines = [
        f"# {escape_markdown(' x '.join(design.axes))}",
        "",
        *(f"- **{escape_markdown(one)}**" for one in headline(tables)),
        "",
        f"{escape_markdown(axes)}; the first level of each is the baseline. {len(design.runs)} runs, "
        f"seed{'s' * (len(design.seeds) > 1)} {seeds}, {tables[0].queries:,} queries.",
        "",
        f"![Effects with their intervals]({picture})",
        "",
        _METHOD.format(interval=interval),
    ]
    for table in tables:
        lines += ["", f"## {table.title}", *_table_lines(design, table)]
    return "\n".join([*lines, ""])


def _table_lines(design: Design, table: Table) -> Iterator[str]:
    yield from table_lines(("effect", table.measure, "95 % interval", "p"), map(effect_cells, table.effects))
    yield ""
    header = (*design.axes, table.measure, "over seeds", "runs")
    yield from table_lines(
        header,
        (
            (
                *result.cell.levels.values(),
                f"{result.mean:.3f}",
                "" if math.isnan(result.deviation) else f"\u00b1 {result.deviation:.3f}",
                ", ".join(run.name for run in result.runs),
            )
            for result in table.results
        ),
    )
    if table.references:
        yield ""
        yield f"For comparison: {escape_markdown(describe_references(table.references))}."


def describe_references(references: Mapping[str, float]) -> str:
    """Return the means of other systems in a line."""
    return ", ".join(f"{system_name(name)} {mean:.3f}" for name, mean in references.items())


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table; cells are escaped."""
    yield f"| {' | '.join(map(escape_markdown, header))} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(map(escape_markdown, row))} |"
