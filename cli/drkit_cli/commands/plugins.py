"""`drkit plugins`: what is installed, and what is broken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from drkit.core.discovery import Installed, PluginReport


@click.command()
def plugins() -> None:
    """Show every installed plugin: what it adds, how long it took to load, what failed, and names that clash."""
    from drkit.core.discovery import installed
    from drkit_cli.render import console, table

    here, screen = installed(), console()
    columns = ("plugin", "from", "parts", "recipes and pipelines", "loaded in", "state")
    screen.print(table("", columns, [_row(report, here) for report in here.plugins]))
    for line in (*_failures(here), *all_clashes(here)):
        screen.print(line, markup=False, soft_wrap=True)


def all_clashes(here: Installed) -> Iterator[str]:
    """Yield a sentence for each name of any kind that several packages claim."""
    from drkit.core.spec import Kind

    for kind in Kind:
        yield from here.registry.clashes(kind)
    yield from here.pipelines.clashes()
    yield from here.recipes.clashes()


def _row(report: PluginReport, here: Installed) -> tuple[str, ...]:
    files = [here.recipes.name_of(file) for file in report.recipes]
    files += [here.pipelines.name_of(file) for file in report.pipelines]
    return (
        report.name,
        report.provider,
        ", ".join(f"{spec.kind} {here.registry.name_of(spec)}" for spec in report.specs) or "-",
        ", ".join(sorted(files)) or "-",
        f"{report.seconds * 1000:.0f} ms" + (", imports torch" if report.imported_torch else ""),
        "failed" if report.error else "broken in part" if report.problems else "ok",
    )


def _failures(here: Installed) -> Iterator[str]:
    for report in here.plugins:
        for problem in (report.error, *report.problems):
            if problem:
                yield f"{report.name} ({report.provider}): {problem}"
