"""`drkit plugins`: what is installed, and what is broken."""

from __future__ import annotations

import click


@click.command()
def plugins() -> None:
    """Show every installed plugin: what it adds, how long it took to load, or why it failed."""
    from drkit.core.discovery import installed
    from drkit_cli.render import console, table

    reports = installed().plugins
    rows = [
        (
            report.name,
            report.provider,
            ", ".join(f"{spec.kind} {spec.name}" for spec in report.specs) or "-",
            ", ".join(sorted(report.recipes)) or "-",
            f"{report.seconds * 1000:.0f} ms" + (", imports torch" if report.imported_torch else ""),
            report.error or "ok",
        )
        for report in reports
    ]
    console().print(table("", ("plugin", "from", "parts", "recipes", "loaded in", "state"), rows))
