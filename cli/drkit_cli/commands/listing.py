"""`drkit list`: list installed parts, recipes and extensions, and which maskers and decoders go together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import attrs
import click

from drkit.core.registry import DRKIT, Installed, NamedFile, installed, package_of
from drkit.core.spec import FINETUNING, RERANKING, ComponentSpec, Extension, Kind, provided_by
from drkit.errors import DrkitError, UnknownNameError
from drkit_cli.names import KINDS, PARTS, KindName, kinds_of
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo

# What the losses and miners are for, in the order in which they are listed.
_USES = ("pre-training", "fine-tuning", "re-ranker", "sources", "filters")

if TYPE_CHECKING:
    from rich.table import Table


# The end of a sentence, but not of `Wang et al. 2022`.
_SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z`])")


@click.command("list", short_help="List parts, recipes and extensions.")
@click.argument("kind", required=False, type=KindName())
@click.option("--matrix", is_flag=True, help="Show which maskers and decoders go together, and why others do not.")
@output_options
def list_parts(kind: str | None, matrix: bool) -> None:
    r"""List what is installed of a KIND, or of every kind, plugins included.

    \b
    drkit list
    drkit list miner
    drkit list --matrix
    """
    parts = installed()
    if kind and kind not in KINDS:
        named = kinds_of(kind)
        advice = f"{kind!r} is a {' and a '.join(named)}: `drkit show {named[0]} {kind}`" if named else ""
        raise UnknownNameError("kind", kind, KINDS, advice=advice)
    if matrix:
        if kind:
            raise click.UsageError("--matrix shows all maskers, decoders and losses; omit KIND")
        _print_matrix(parts)
        return
    kinds = [kind] if kind else KINDS
    found = {each: _rows(each, parts) for each in kinds}

    def draw() -> None:
        from drkit_cli.render import console

        for position, (each, rows) in enumerate(found.items()):
            if position:
                echo("")
            console().print(_table(each, rows))

    print_result({"parts": found}, draw)


def _print_matrix(parts: Installed) -> None:
    from drkit.recipe.matrix import matrix
    from drkit_cli.matrix import print_matrix
    from drkit_cli.render import console

    made = matrix(parts)
    print_result(attrs.asdict(made), lambda: print_matrix(made, console()))


def _rows(kind: str, parts: Installed) -> list[dict[str, str]]:
    if kind in PARTS:
        rows = [
            {
                "name": spec.name,
                "summary": spec.summary,
                "paper": spec.cite.key if spec.cite else "",
                "from": spec.provider,
                "use": use_of(spec),
            }
            for spec in parts.registry.specs(kind)
        ]
        rows.sort(key=lambda row: ("", *_USES).index(row["use"]))
        return rows
    return [
        {"name": item.name, "summary": _summary(item), "paper": "", "from": item.provider, "use": ""}
        for item in parts.table(kind).items()
    ]


def use_of(spec: ComponentSpec) -> str:
    """Return what a loss or a miner is for; nothing for other kinds."""
    receives = set(spec.receives)
    if spec.kind is Kind.MINER:
        return "filters" if "candidates" in receives else "sources"
    if spec.kind is not Kind.LOSS:
        return ""
    if receives & {*provided_by(RERANKING)}:
        return "re-ranker"
    return "fine-tuning" if receives & {*provided_by(FINETUNING)} or not receives else "pre-training"


def _table(kind: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of two columns, which fits 80: a name; and a summary, the paper, and a package beside drkit."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=kind, title_justify="left", title_style="bold", box=None, pad_edge=False, show_header=False)
    drawn.add_column(overflow="fold")
    drawn.add_column(overflow="fold")
    use = ""
    for row in rows:
        if row.get("use", "") != use:
            use = row["use"]
            drawn.add_row(Text(f"{use}:", style="italic"), "")
        about = Text(row["summary"])
        others = row["from"] if package_of(row["from"]) != DRKIT else ""
        for more in filter(None, (row["paper"], others)):
            about.append(f"  {more}", style="dim")
        drawn.add_row(Text(row["name"]), about)
    return drawn


def _summary(found: NamedFile | Extension) -> str:
    """Return an extension's summary; or the first sentence of a recipe's comment, or why its file cannot be read."""
    if isinstance(found, Extension):
        return found.summary
    try:
        lines = found.text().splitlines()
    except DrkitError as error:
        return f"broken: {error}"
    comment = " ".join(line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines))
    return _SENTENCE_END.split(comment)[0]
