"""`drkit list`: list installed parts and recipes, and which maskers and decoders go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from drkit.core.registry import Installed, NamedFile

KINDS = ("masker", "decoder", "loss", "miner", "collection", "signal", "pipeline", "recipe")


@click.command("list")
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.option("--matrix", is_flag=True, help="Show which maskers and decoders go together, and why others do not.")
def list_parts(kind: str | None, matrix: bool) -> None:
    r"""List the installed parts and recipes of a KIND, or of every kind, plugins included.

    \b
    drkit list miner
    drkit list --matrix
    """
    from drkit.core.registry import installed
    from drkit_cli.render import console

    parts, screen = installed(), console()
    if matrix:
        if kind:
            raise click.UsageError("--matrix shows all maskers, decoders and losses; omit KIND")
        from drkit.recipe.check import matrix as build_matrix
        from drkit_cli.matrix import print_matrix

        print_matrix(build_matrix(parts), screen)
        return
    for each in [kind] if kind else KINDS:
        _print_kind(each, parts, screen)


def _print_kind(kind: str, parts: Installed, screen: Console) -> None:
    from drkit_cli.render import table

    if kind in ("pipeline", "recipe"):
        files = parts.recipes if kind == "recipe" else parts.pipelines
        rows = [(files.name_of(file), _first_comment(file)) for file in files.items()]
        screen.print(table(kind, ("name", "what it is"), sorted(rows)))
        clashes = files.clashes()
    else:
        registry = parts.registry
        specs = {registry.name_of(spec): spec for spec in registry.specs(kind)}
        found = [(name, s.summary, s.cite.key if s.cite else "", s.provider) for name, s in sorted(specs.items())]
        screen.print(table(kind, ("name", "what it does", "paper", "from"), found))
        clashes = registry.clashes(kind)
    for line in clashes:
        screen.print(line, soft_wrap=True)


def _first_comment(found: NamedFile) -> str:
    if found.problem:
        return f"broken: {found.problem}"
    line = found.file.read_text(encoding="utf-8").partition("\n")[0]
    return line.lstrip("# ") if line.startswith("#") else ""
