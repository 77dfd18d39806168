"""`drkit plugins`: list the installed plugins, and what is broken in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from drkit.core.registry import Installed, PluginReport


@click.command()
def plugins() -> None:
    """Show every installed plugin: what it adds, its loading time, its errors, and clashing names."""
    from drkit.core.registry import installed
    from drkit_cli.render import console, table

    parts, screen = installed(), console()
    columns = ("plugin", "from", "parts", "recipes and pipelines", "loaded in", "state")
    screen.print(table("", columns, [_row(report, parts) for report in parts.plugins]))
    for line in (*_failures(parts), *all_clashes(parts)):
        screen.print(line, soft_wrap=True)


def all_clashes(parts: Installed) -> Iterator[str]:
    """Yield a sentence for each name of any kind that several packages use."""
    from drkit.core.spec import Kind

    for kind in Kind:
        yield from parts.registry.clashes(kind)
    yield from parts.pipelines.clashes()
    yield from parts.recipes.clashes()


def _row(report: PluginReport, parts: Installed) -> tuple[str, ...]:
    files = [parts.recipes.name_of(file) for file in report.recipes]
    files += [parts.pipelines.name_of(file) for file in report.pipelines]
    return (
        report.name,
        report.provider,
        ", ".join(f"{spec.kind} {parts.registry.name_of(spec)}" for spec in report.specs) or "-",
        ", ".join(sorted(files)) or "-",
        f"{report.seconds * 1000:.0f} ms" + (", imports torch" if report.imported_torch else ""),
        "failed" if report.error else "broken in part" if report.problems else "ok",
    )


def _failures(parts: Installed) -> Iterator[str]:
    for report in parts.plugins:
        for problem in (report.error, *report.problems):
            if problem:
                yield f"{report.name} ({report.provider}): {problem}"
