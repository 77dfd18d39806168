"""The option `--measures`, and the table of scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve

if TYPE_CHECKING:
    from drkit.evaluate import Row
    from drkit_cli.render import FittingTable


def split_names(_context: Any, _option: Any, given: Sequence[str]) -> tuple[str, ...]:
    """Split `RR@10 nDCG@10` or `RR@10,AP` into names; a comma within brackets belongs to its name.

    >>> split_names(None, None, ["RR@10 P(rel=2)@5,AP", "R@100"])
    ('RR@10', 'P(rel=2)@5', 'AP', 'R@100')
    """
    return tuple(name for text in given for name in re.split(r"[\s,]+(?![^()]*\))", text.strip()) if name)


def measures_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--measures` to a command."""
    option = click.option(
        "--measures",
        "-m",
        multiple=True,
        callback=split_names,
        metavar="NAMES",
        help='By their ir_measures names: "RR@10 nDCG@10 R@1000"; repeatable.',
    )
    return option(command)


def score_table(rows: Sequence[Row]) -> FittingTable:
    """Return a table of systems by measures."""
    from drkit.evaluate.systems import cell
    from drkit.report import SYSTEM_NAMES
    from drkit_cli.render import table

    measures = list(rows[0].values)
    cells = [[SYSTEM_NAMES.get(row.system, row.system), *(cell(row, measure) for measure in measures)] for row in rows]
    made = table(f"{rows[0].queries:,} queries", ("system", *measures), cells)
    return evolve(made, justify="right")
