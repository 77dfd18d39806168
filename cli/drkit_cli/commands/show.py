"""`drkit show`: show one part, recipe or pipeline."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from drkit_cli.commands.listing import KINDS
from drkit_cli.terminal import echo

if TYPE_CHECKING:
    from drkit.core.spec import ComponentSpec


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
def show(kind: str, name: str) -> None:
    r"""Show a part (its settings with defaults and meaning, its paper, its source file), a recipe or a pipeline.

    \b
    drkit show masker pmi
    drkit show miner margin
    drkit show recipe retromae
    drkit show pipeline three-stage
    """
    from drkit.core.registry import installed

    parts = installed()
    if kind in ("recipe", "pipeline"):
        file = parts.recipe(name) if kind == "recipe" else parts.pipeline(name)
        echo(file.read_text(encoding="utf-8"), nl=False)
    else:
        _show_part(parts.registry.get(kind, name))


def _show_part(spec: ComponentSpec) -> None:
    from rich.text import Text

    from drkit.core.settings import describe_settings
    from drkit.core.spec import SCOPES
    from drkit_cli.render import console, table

    screen = console()
    screen.print(Text(f"{spec.kind} {spec.name}", style="bold").append(f"  {spec.summary}", style="not bold"))
    if spec.deprecated:
        screen.print(f"deprecated: {spec.deprecated}")
    settings = describe_settings(spec.config)
    if settings:
        screen.print(table("settings", ("name", "default", "allowed", "meaning"), settings))
    if spec.cite:
        screen.print(f"paper     {spec.cite.title}, {spec.cite.year} {spec.cite.url}", soft_wrap=True)
    for name in ("receives", "signals", "requires", "provides"):
        screen.print(f"{name:9} {', '.join(getattr(spec, name)) or 'nothing'}")
    if spec.kind in SCOPES:
        screen.print(f"scope     {spec.scope_of(None)}")
    screen.print(f"from      {spec.provider}")
    screen.print(f"code      {_source_line(spec.target)}", soft_wrap=True)


def _source_line(target: str) -> str:
    """Return `file:line` of a target, from its source: the module is not imported."""
    module, _, attribute = target.partition(":")
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # its package is missing
        found = None
    if found is None or found.origin is None:
        return target
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    lines = [node.lineno for node in tree.body if isinstance(node, kinds) and node.name == attribute]
    return f"{found.origin}:{lines[0]}" if lines else found.origin
