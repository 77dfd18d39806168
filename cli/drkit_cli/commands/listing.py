"""`drkit list`: the parts and recipes there are."""

from __future__ import annotations

import click

KINDS = ("masker", "decoder", "loss", "miner", "collection", "recipe")


@click.command("list")
@click.argument("kind", required=False, type=click.Choice(KINDS))
def list_parts(kind: str | None) -> None:
    """List the parts of a KIND (or of every kind) and the recipes, plugins' included."""
    from drkit.core.discovery import installed
    from drkit_cli.render import console, table

    parts = installed()
    screen = console()
    for wanted in [kind] if kind else KINDS:
        if wanted == "recipe":
            rows = [(name, _first_comment(name)) for name in sorted(parts.recipes)]
            screen.print(table("recipe", ("name", "what it is"), rows))
            continue
        specs = parts.registry.specs(wanted)
        found = [(s.name, s.summary, s.cite.key if s.cite else "", s.provider) for s in specs]
        screen.print(table(wanted, ("name", "what it does", "paper", "from"), found))


def _first_comment(name: str) -> str:
    from drkit.core.discovery import installed

    claims = installed().recipes[name]
    line = claims[0].read_text(encoding="utf-8").splitlines()[0]
    return line.lstrip("# ") if line.startswith("#") else ""
