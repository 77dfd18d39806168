"""`drkit doctor`: examine the installation and the machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from drkit_cli.names import LocalPath
from drkit_cli.output import is_quiet, output_options, print_result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drkit.commands import Check

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


@click.command(short_help="Examine the installation and the machine.")
@click.option("--runs", default="runs", show_default=True, type=LocalPath(), help="The folder of your runs.")
@output_options
def doctor(runs: Path) -> int:
    r"""Examine Python, packages, devices, threads, memory, disks and plugins, with advice where something is off.

    The exit code is 1 if drkit cannot work, and 0 otherwise. With -q, only what is not ok is shown.

    \b
    drkit doctor
    drkit doctor --json
    """
    from attrs import asdict

    from drkit.commands import can_work, examine
    from drkit.core.registry import installed

    checks = examine(installed(), runs)
    works = can_work(checks)
    shown = [check for check in checks if check.advice or not is_quiet()]
    print_result({"can_work": works, "checks": [asdict(check) for check in checks]}, lambda: _print(shown, works))
    return int(not works)


def _print(checks: Sequence[Check], works: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from drkit_cli.render import console

    screen = console()
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        line = Text(f"{check.state:8}", style=_STYLES[check.state]).append(
            f"{check.name:{width}}", style="bold default"
        )
        screen.print(line.append(f"  {check.found}", style="not bold default"), soft_wrap=not screen.is_terminal)
        if check.advice:
            screen.print(Padding(Text(f"-> {check.advice}"), (0, 0, 0, 8), expand=False))
    if not works:
        screen.print("drkit cannot work here: fix the errors first")
