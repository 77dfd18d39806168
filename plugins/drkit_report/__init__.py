"""Looking at runs: a page about finished runs, a page to search and judge on, and what maskers and vectors hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drkit.plugin import hookimpl
from drkit_report.commands.inspect import inspect
from drkit_report.commands.report import report
from drkit_report.commands.serve import serve

if TYPE_CHECKING:
    import click


@hookimpl
def drkit_commands() -> Sequence[click.Command]:
    """Return the commands `report`, `serve` and `inspect`."""
    return [report, serve, inspect]
