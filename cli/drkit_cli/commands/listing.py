"""`drkit list`: the parts and recipes there are, and which go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from drkit.core.discovery import Installed, NamedFile

KINDS = ("masker", "decoder", "loss", "miner", "collection", "signal", "pipeline", "recipe")


@click.command("list")
@click.argument("kind", required=False, type=click.Choice(KINDS))
@click.option("--matrix", is_flag=True, help="Which maskers and decoders go together, and why the others do not.")
def list_parts(kind: str | None, matrix: bool) -> None:
    r"""List the parts of a KIND (or of every kind) and the recipes, plugins' included.

    \b
    drkit list miner
    drkit list --matrix
    """
    from drkit.core.discovery import installed
    from drkit_cli.render import console

    here, screen = installed(), console()
    if matrix:
        if kind:
            raise click.UsageError("--matrix is about all maskers, decoders and losses: leave KIND out")
        from drkit.core.matrix import matrix as everything
        from drkit_cli.matrix import print_matrix

        print_matrix(everything(here), screen)
        return
    for one in [kind] if kind else KINDS:
        _print_kind(one, here, screen)


def _print_kind(kind: str, here: Installed, screen: Console) -> None:
    from drkit_cli.render import table

    if kind in ("pipeline", "recipe"):
        files = here.recipes if kind == "recipe" else here.pipelines
        rows = [(files.name_of(file), _first_comment(file)) for file in files.items()]
        screen.print(table(kind, ("name", "what it is"), sorted(rows)))
        clashes = files.clashes()
    else:
        registry = here.registry
        specs = {registry.name_of(spec): spec for spec in registry.specs(kind)}
        found = [(name, s.summary, s.cite.key if s.cite else "", s.provider) for name, s in sorted(specs.items())]
        screen.print(table(kind, ("name", "what it does", "paper", "from"), found))
        clashes = registry.clashes(kind)
    for line in clashes:
        screen.print(line, markup=False, soft_wrap=True)


def _first_comment(found: NamedFile) -> str:
    if found.problem:
        return f"broken: {found.problem}"
    line = found.file.read_text(encoding="utf-8").partition("\n")[0]
    return line.lstrip("# ") if line.startswith("#") else ""
