"""`drkit list`: the parts and recipes there are, and which go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

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
    from drkit_cli.render import console, table

    parts = installed()
    if matrix:
        if kind:
            raise click.UsageError("--matrix is about all maskers, decoders and losses: leave KIND out")
        _matrix()
        return
    screen = console()
    for wanted in [kind] if kind else KINDS:
        if wanted in ("pipeline", "recipe"):
            files = parts.recipes if wanted == "recipe" else parts.pipelines
            rows = [(name, _first_comment(files[name][0])) for name in sorted(files)]
            screen.print(table(wanted, ("name", "what it is"), rows))
            continue
        specs = parts.registry.specs(wanted)
        found = [(s.name, s.summary, s.cite.key if s.cite else "", s.provider) for s in specs]
        screen.print(table(wanted, ("name", "what it does", "paper", "from"), found))


def _first_comment(file: Traversable) -> str:
    line = file.read_text(encoding="utf-8").splitlines()[0]
    return line.lstrip("# ") if line.startswith("#") else ""


def _matrix() -> None:
    from drkit.core.discovery import installed
    from drkit.core.matrix import matrix
    from drkit_cli.matrix import print_matrix
    from drkit_cli.render import console

    print_matrix(matrix(installed()), console())
