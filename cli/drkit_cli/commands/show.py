"""`drkit show`: show one part, recipe, pipeline or extension, or what two of them set differently."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from drkit.core.files import local_path
from drkit.core.registry import Installed, installed
from drkit.core.settings import describe_settings
from drkit.core.spec import EXTENSIONS, SCOPES, ComponentSpec, Extension
from drkit.errors import DrkitError, UnknownNameError, did_you_mean
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.schema import Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import parse_toml, read_recipe
from drkit_cli.names import KINDS, PARTS, KindName, NameOfKind, kinds_of, names_of, recased
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo

if TYPE_CHECKING:
    from drkit.recipe.paths import Difference

_CONTRACT = ("receives", "signals", "requires", "provides")


@click.command(short_help="Show a part, a recipe, or how two recipes differ.")
@click.argument("kind", type=KindName(), metavar="[KIND] NAME")
@click.argument("name", type=NameOfKind(), required=False, metavar="")
@click.option(
    "--diff",
    "other",
    metavar="OTHER",
    type=NameOfKind(),
    help="Of two recipes or pipelines, show the settings that differ; a recipe may be a file or a run.",
)
@click.option(
    "--scale",
    type=click.Choice(["paper", "small"]),
    default="paper",
    help="Of a recipe or pipeline: the paper's numbers (the default), or those for minutes on a CPU.",
)
@click.option("--results", is_flag=True, help="Of a paper's recipe: every number that the paper prints.")
@output_options
def show(kind: str, name: str | None, other: str | None, scale: str, results: bool) -> None:
    r"""Show a part (its settings with defaults and meaning, its paper, its source file), a recipe or a pipeline.

    \b
    drkit show pmi
    drkit show miner margin
    drkit show recipe retromae --scale small
    drkit show recipe retromae --diff cdmae
    drkit show recipe default --diff runs/R
    drkit show recipe simlm --results
    drkit show pipeline three-stage
    """
    parts = installed()
    kind, name = _resolve_name(kind, name)
    if results:
        _show_results(kind, name, parts)
    elif other is not None:
        _show_differences(kind, name, other, scale, parts)
    elif kind in PARTS:
        _show_part(parts.registry.get(kind, name))
    elif kind in EXTENSIONS:
        _show_extension(kind, parts.table(kind).get(name))
    else:
        _show_file(kind, name, scale, parts)


def _resolve_name(kind: str, name: str | None) -> tuple[str, str]:
    """Return the kind and name of a KIND and a NAME, or of a NAME alone. Raises DrkitError if it is unclear."""
    if name is None and kind in KINDS:
        raise DrkitError(f"which {kind}? known: {', '.join(names_of(kind)) or 'none'}")
    if name is None:
        kinds = kinds_of(kind)
        if len(kinds) != 1:
            raise DrkitError(_unclear(kind, kinds))
        kind, name = kinds[0], kind
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    return kind, recased(name, names_of(kind))


def _unclear(name: str, kinds: Sequence[str]) -> str:
    """Return what is wrong with a name alone that is of several kinds or of none, and what to write."""
    if kinds:
        lines = " or ".join(f"`drkit show {kind} {name}`" for kind in kinds)
        return f"{name!r} is the name of a {' and of a '.join(kinds)}; write {lines}"
    if local_path(name).exists():
        path = local_path(name)
        recipe = path / RECIPE if path.is_dir() else path
        return f"{name!r} is a path; read {recipe}, or `drkit show recipe default --diff {name}`"
    known = [one for kind in KINDS for one in names_of(kind)]
    return (
        f"{name!r} names no part, recipe or pipeline{did_you_mean(name, known)} see `drkit list`, or write `drkit show "
        f"KIND NAME`; kinds: {', '.join(KINDS)}"
    )


def _show_extension(kind: str, found: Extension) -> None:
    from rich.text import Text

    from drkit_cli.render import console

    lines = {"packages": ", ".join(found.packages), "from": found.provider, "code": _source_line(found.target)}
    document = {"kind": kind, "name": found.name, "summary": found.summary, **lines, "packages": list(found.packages)}

    def draw() -> None:
        screen = console()
        screen.print(Text(f"{kind} {found.name}", style="bold").append(f"  {found.summary}", style="not bold"))
        for name, value in lines.items():
            screen.print(f"{name:9} {value or 'none'}", soft_wrap=True)

    print_result(document, draw)


def _show_file(kind: str, name: str, scale: str, parts: Installed) -> None:
    found = parts.table(kind).get(name)
    text = found.text(small=scale == "small")
    table = parse_toml(text, f"{kind} {name}")
    print_result({"kind": kind, "name": name, "settings": table}, lambda: echo(text, nl=False))


def _show_differences(kind: str, name: str, other: str, scale: str, parts: Installed) -> None:
    from drkit.recipe.paths import recipe_differences

    if kind not in ("recipe", "pipeline"):
        raise click.UsageError("--diff compares recipes or pipelines; show the settings of each part on its own")
    found = recipe_differences(_recipe_of(kind, name, scale, parts), _recipe_of(kind, other, scale, parts))
    document = {"left": name, "right": other, "differences": [attrs.asdict(one) for one in found]}
    print_result(document, lambda: _print_differences(name, other, found))


def _show_results(kind: str, name: str, parts: Installed) -> None:
    from drkit.recipe.published import published_beside
    from drkit_cli.render import console

    if kind != "recipe":
        raise click.UsageError(f"--results is of a paper's recipe, not of a {kind}: drkit show recipe simlm --results")
    paper = published_beside(parts.recipes.get(name))
    found = list(paper.results())
    document = {
        "paper": paper.title,
        "source": paper.source,
        "rows": [{"name": row.name, "options": row.options} for row in paper.rows],
        "results": [{"reproduces": row, **attrs.asdict(one)} for row, one in found],
    }

    def draw() -> None:
        screen = console()
        screen.print(f"{paper.title} ({paper.source})", markup=False, soft_wrap=True)
        for place in dict.fromkeys(f"{one.collection} {one.split}" for _, one in found):
            screen.print(f"\n{place}", style="bold")
            for _, one in found:
                if f"{one.collection} {one.split}" == place:
                    values = "  ".join(f"{measure} {value:g}" for measure, value in one.measures.items())
                    screen.print(f"  {values:<40} {one.stage:<20} {one.table}: {one.row}", markup=False, soft_wrap=True)
        screen.print(f"\n`drkit reproduce {name}` lists the rows that drkit composes", markup=False, soft_wrap=True)

    print_result(document, draw)


def _recipe_of(kind: str, name: str, scale: str, parts: Installed) -> Recipe:
    """Return the recipe or pipeline of a name at a scale, or the recipe of a file or run."""
    if kind == "recipe" and name not in parts.recipes and Path(name).exists():
        path = Path(name)
        return read_recipe(path / RECIPE if path.is_dir() else path, parts.registry)
    if kind == "recipe":
        return compose(ComposeRequest(paper=name, scale=scale), parts)
    return compose(ComposeRequest(pipeline=name, scale=scale), parts)


def _print_differences(name: str, other: str, found: list[Difference]) -> None:
    from drkit_cli.render import console, table

    if not found:
        echo(f"{name} and {other} have the same settings")
        return
    rows = [(one.path, _shown(one.left), _shown(one.right)) for one in found]
    console().print(table("", ("setting", name, other), rows))


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return f"{value.get('name', value.get('use', ''))} ({len(value)} settings)".strip()
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _show_part(spec: ComponentSpec) -> None:
    names = ("name", "default", "allowed", "meaning")
    document = {
        "kind": spec.kind.value,
        "name": spec.name,
        "summary": spec.summary,
        "settings": [dict(zip(names, row, strict=True)) for row in describe_settings(spec.config)],
        "paper": attrs.asdict(spec.cite) if spec.cite else None,
        **{name: list(getattr(spec, name)) for name in _CONTRACT},
        "scope": str(spec.scope_of(None)) if spec.kind in SCOPES else None,
        "from": spec.provider,
        "code": _source_line(spec.target),
    }
    print_result(document, lambda: _print_part(document))


def _print_part(part: dict[str, Any]) -> None:
    from rich.text import Text

    from drkit_cli.render import console, table

    screen = console()
    screen.print(Text(f"{part['kind']} {part['name']}", style="bold").append(f"  {part['summary']}", style="not bold"))
    if part["settings"]:
        columns = tuple(part["settings"][0])
        screen.print(table("settings", columns, [tuple(row.values()) for row in part["settings"]]))
    if part["paper"]:
        screen.print("paper     {title}, {year} {url}".format(**part["paper"]), soft_wrap=True)
    for name in _CONTRACT:
        screen.print(f"{name:9} {', '.join(part[name]) or 'nothing'}")
    if part["scope"]:
        screen.print(f"scope     {part['scope']}")
    screen.print(f"from      {part['from']}")
    screen.print(f"code      {part['code']}", soft_wrap=True)


def _source_line(target: str) -> str:
    """Return `file:line` of a target, from its source: the module is not imported."""
    module, _, attribute = target.partition(":")
    try:
        found = find_spec(module)
    except ModuleNotFoundError:  # its package is missing
        found = None
    if found is None or found.origin is None:
        return target
    defined = re.compile(rf"(?:class|def) {attribute}\b|{attribute}\b.*=")
    lines = Path(found.origin).read_text(encoding="utf-8").splitlines()
    number = next((number for number, line in enumerate(lines, start=1) if defined.match(line)), None)
    return f"{found.origin}:{number}" if number else found.origin
