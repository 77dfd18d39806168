"""`drkit plugins`: list the installed plugins, and what is broken in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from drkit.core.registry import full_name, package_of
from drkit.core.spec import EXTENSIONS, Kind
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo

if TYPE_CHECKING:
    from drkit.core.registry import Installed, PluginReport


@click.command(short_help="Show the installed plugins and their errors.")
@output_options
def plugins() -> None:
    r"""Show every installed plugin: what it adds, its loading time, its errors, and clashing names.

    \b
    drkit plugins
    """
    from drkit.core.registry import installed

    parts = installed()
    found = [_describe(report, parts) for report in parts.plugins]
    clashes = list(all_clashes(parts))

    def draw() -> None:
        for plugin in found:
            _print_plugin(plugin)
        for line in (*_failures(parts), *clashes):
            echo(line)

    print_result({"plugins": found, "clashes": clashes}, draw)


def _print_plugin(plugin: Mapping[str, Any]) -> None:
    """Print a plugin: a line about it, then a line for each kind of what it adds."""
    from rich.table import Table
    from rich.text import Text

    from drkit_cli.render import console

    imports = ", imports torch" if plugin["imports_torch"] else ""
    about = f"  {plugin['from']}, loaded in {plugin['seconds'] * 1000:.0f} ms{imports}: {plugin['state']}"
    added = Table.grid(padding=(0, 2))
    for kind, names in plugin["adds"].items():
        added.add_row(Text(f"  {kind}"), Text(", ".join(names)))
    console().print(Text(plugin["name"], style="bold").append(about, style="not bold"))
    console().print(added)


def all_clashes(parts: Installed) -> Iterator[str]:
    """Yield a sentence for each name of any kind that several packages use, the names of drkit's commands included."""
    for kind in Kind:
        yield from parts.registry.clashes(kind)
    for other in ("pipeline", "recipe", *EXTENSIONS):
        yield from parts.table(other).clashes()
    root = click.get_current_context().find_root().command
    own = root.commands if isinstance(root, click.Group) else {}
    for command in (each for each in parts.table("command").items() if each.name in own):
        yield (
            f"command {command.name!r} is declared by drkit and {package_of(command.provider)}: {command.name!r} means "
            f"drkit's, write {full_name(command)!r} for the other"
        )


def _describe(report: PluginReport, parts: Installed) -> dict[str, Any]:
    adds: dict[str, list[str]] = {}
    for spec in report.specs:
        adds.setdefault(spec.kind.value, []).append(parts.registry.name_of(spec))
    for kind, items in {"pipeline": report.pipelines, "recipe": report.recipes, **report.extensions}.items():
        if items:
            adds[kind] = sorted(map(parts.table(kind).name_of, items))
    return {
        "name": report.name,
        "from": report.provider,
        "adds": adds,
        "seconds": report.seconds,
        "imports_torch": report.imported_torch,
        "state": "failed" if report.error else "broken in part" if report.problems else "ok",
        "problems": [problem for problem in (report.error, *report.problems) if problem],
    }


def _failures(parts: Installed) -> Iterator[str]:
    for report in parts.plugins:
        for problem in (report.error, *report.problems):
            if problem:
                yield f"{report.name} ({report.provider}): {problem}"
