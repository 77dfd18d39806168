"""`drkit plugins`: list the installed plugins, and what is broken in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from drkit.core.registry import Installed, PluginReport, installed
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo


@click.command(short_help="Show the installed plugins and their errors.")
@output_options
def plugins() -> None:
    r"""Show every installed plugin: what it adds, its loading time, its errors, and clashing names.

    \b
    drkit plugins
    """
    parts = installed()
    found = [_describe(report) for report in parts.plugins]
    clashes = list(_clashes(parts))

    def draw() -> None:
        for plugin in found:
            _print_plugin(plugin)
        for line in (*_failures(parts), *clashes):
            echo(line)
        for plugin in found:
            for note in plugin["notes"]:
                echo(f"{plugin['name']} ({plugin['from']}): {note}")

    print_result({"plugins": found, "clashes": clashes}, draw)


def _print_plugin(plugin: Mapping[str, Any]) -> None:
    """Print a plugin: a line about it, then a line for each kind of what it adds."""
    from rich.table import Table
    from rich.text import Text

    from drkit_cli.render import console

    about = f"  {plugin['from']}, loaded in {plugin['seconds'] * 1000:.0f} ms: {plugin['state']}"
    added = Table.grid(padding=(0, 2))
    for kind, names in plugin["adds"].items():
        added.add_row(Text(f"  {kind}"), Text(", ".join(names)))
    console().print(Text(plugin["name"], style="bold").append(about, style="not bold"))
    console().print(added)


def _clashes(parts: Installed) -> Iterator[str]:
    """Yield a sentence for each name that several packages use, the names of drkit's commands included."""
    yield from parts.clashes
    root = click.get_current_context().find_root().command
    own = root.commands if isinstance(root, click.Group) else {}
    for command in (each for each in parts.table("command").items() if each.name in own):
        yield f"command {command.name!r} is declared by {command.provider}, too; drkit's own is used"


def _describe(report: PluginReport) -> dict[str, Any]:
    named = [
        *((spec.kind.value, spec.name) for spec in report.specs),
        *(("pipeline", file.name) for file in report.pipelines),
        *(("recipe", file.name) for file in report.recipes),
        *((kind, one.name) for kind, found in report.extensions.items() for one in found),
    ]
    adds: dict[str, list[str]] = {}
    for kind, name in named:
        adds.setdefault(kind, []).append(name)
    return {
        "name": report.name,
        "from": report.provider,
        "adds": adds,
        "seconds": report.seconds,
        "state": "failed" if report.error else "broken in part" if report.problems else "ok",
        "problems": [problem for problem in (report.error, *report.problems) if problem],
        "notes": list(_notes(report)),
    }


def _notes(report: PluginReport) -> Iterator[str]:
    yield from report.notes
    if report.is_slow:
        yield f"takes {report.seconds:.1f} s to load, in every command; import heavy libraries where they are used"


def _failures(parts: Installed) -> Iterator[str]:
    for report in parts.plugins:
        for problem in (report.error, *report.problems):
            if problem:
                yield f"{report.name} ({report.provider}): {problem}"
