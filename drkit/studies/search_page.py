"""The page of a search, in Markdown, and the rows of its tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import fields

from drkit.core.escaping import escape_markdown
from drkit.core.files import write_text
from drkit.core.quantities import counted
from drkit.recipe.compose import CHOICES
from drkit.recipe.schema import Recipe
from drkit.recipe.toml import toml_value
from drkit.studies.page import table_lines
from drkit.studies.search import PROBE, SEARCH_PAGE, RungRecord, SearchRecord
from drkit.studies.space import Space

RUNGS = ("rung", "compositions", "steps", "minutes", "expected", "best")
CORRELATIONS = ("order of", "tells that of", "Kendall's tau", "compositions")
_METHOD = """Each rung got an equal share of the time that was left, and the best third of its compositions went on. \
Scores are means over the dev queries; no test query was read. The best of many on the same queries is partly luck: \
compare it with other recipes on queries that no search has read."""


def compose_line(space: Space, levels: Mapping[str, str]) -> str:
    """Return the command that composes a composition, at the recipe's own number of steps."""
    words = ["drkit", "compose"]
    for name, value in {**space.choices, **space.cell_of(levels).choices}.items():
        if name not in CHOICES:
            words += ["--set", f"{name}={toml_value(value)}"]
        elif value is not None:
            option = "--miner" if name == "miners" else f"--{name.replace('_', '-')}"
            words += [word for one in _each(value) for word in (option, str(one))]
    seed = [] if space.seed == fields(Recipe).seed.default else ["--set", f"seed={space.seed}"]
    return shlex.join([*words, *seed])


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def search_headline(record: SearchRecord) -> list[str]:
    """Say which composition is the best, on how much, and which others are as good."""
    last, best = record.finished[-1], record.winner
    tried = len(record.rungs[0].cells)
    lines = [
        f"The best of {counted(tried, 'composition')} is {best}: {record.measure} {last.scores[best]:.3f} on the dev "
        f"queries after {last.steps:,} steps."
    ]
    if record.equal:
        lines.append(f"As good within one standard error: {', '.join(record.equal)}.")
    return [*lines, f"{record.spent / 3600:.2f} of {record.hours:g} hours were spent; {record.end}."]


def rung_rows(record: SearchRecord) -> list[tuple[str, ...]]:
    """Return a row for each finished rung, as `RUNGS` names the columns."""
    rows = list[tuple[str, ...]]()
    for number, rung in enumerate(record.finished, start=1):
        best = rung.best_first[0]
        taken = sum(rung.seconds.values()) / max(1, min(record.slots, len(rung.cells)))
        minutes = (f"{taken / 60:.1f}", f"{rung.expected / 60:.1f}")
        rows.append((str(number), str(len(rung.cells)), f"{rung.steps:,}", *minutes, f"{best} {rung.scores[best]:.3f}"))
    return rows


def correlation_rows(record: SearchRecord) -> list[tuple[str, ...]]:
    """Return a row for each pair of orders, as `CORRELATIONS` names the columns."""
    return [
        (
            f"rung {row['rung']}, {record.measure}" if row["predictor"] == "scores" else f"rung {row['rung']}, probe",
            f"rung {row['predicted']}",
            "fewer than 3, or all equal" if row["tau"] is None else f"{row['tau']:.2f}",
            str(row["compositions"]),
        )
        for row in record.correlations()
    ]


def score_rows(rung: RungRecord, space: Space) -> list[tuple[str, ...]]:
    """Return a row for each composition of a rung, the best first: its levels, score, probe, or why it failed."""
    levels = {space.cell_of(one).name: one for one in rung.cells}
    rows = [
        (*levels[name].values(), f"{rung.scores[name]:.3f}", f"{rung.probes[name]:.3f}" if name in rung.probes else "")
        for name in rung.best_first
    ]
    return [*rows, *((*levels[name].values(), "failed", why.splitlines()[0]) for name, why in rung.failures.items())]


def score_header(record: SearchRecord, space: Space) -> tuple[str, ...]:
    """Return the columns of `score_rows`."""
    return (*space.axes, record.measure, f"probe's {PROBE}")


def winner_line(record: SearchRecord, space: Space) -> str:
    """Return the command that composes the best composition."""
    last = record.finished[-1]
    return compose_line(space, next(one for one in last.cells if space.cell_of(one).name == record.winner))


def write_search(record: SearchRecord, space: Space) -> Path:
    """Write the page of a finished search into its folder; returns its path."""
    write_text(space.folder / SEARCH_PAGE, search_page(record, space))
    return space.folder / SEARCH_PAGE


def search_page(record: SearchRecord, space: Space) -> str:
    """Return a finished search as Markdown: its verdict, its rungs, and how to repeat it."""
    lines = [
        f"# Search: {escape_markdown(' x '.join(space.axes))}",
        "",
        *(f"- {escape_markdown(one)}" for one in search_headline(record)),
        "",
        *("```sh", winner_line(record, space), "```"),
        "",
        _METHOD,
        "",
        "## Rungs",
        "",
        *table_lines(RUNGS, rung_rows(record)),
        "",
        *table_lines(CORRELATIONS, correlation_rows(record)),
    ]
    for number, rung in enumerate(record.finished, start=1):
        title = f"## Rung {number}: {counted(len(rung.cells), 'composition')} of {rung.steps:,} steps"
        lines += ["", title, "", *table_lines(score_header(record, space), score_rows(rung, space))]
    return "\n".join([*lines, "", *_left_out(record, space), ""])


def _left_out(record: SearchRecord, space: Space) -> Iterator[str]:
    axes = "; ".join(f"{axis}: {', '.join(map(str, levels))}" for axis, levels in space.axes.items())
    yield "## The space"
    yield ""
    yield escape_markdown(f"{axes}. {describe_drawn(record.combinations, record.tried, len(record.rungs[0].cells))}")
    problems = [f"{name}: {why}" for name, why in space.left_out.items()]
    problems += [f"{counted(number, 'combination')}: {why}" for why, number in record.left_out.items()]
    if problems:
        yield ""
        yield "Left out, because they cannot be composed:"
        yield ""
        yield from (f"- {escape_markdown(one)}" for one in problems)


def describe_drawn(combinations: int, tried: int, cells: int) -> str:
    """Say how many combinations were tried, and how many can be composed.

    >>> describe_drawn(5376, 30, 12)
    'Of 5,376 combinations, 30 were drawn, of which 12 can be composed.'
    """
    return f"Of {counted(combinations, 'combination')}, {tried:,} were drawn, of which {cells:,} can be composed."
