"""`drkit init`: look at a collection, and write a commented recipe for it."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit_cli.names import CollectionName, LocalPath, PathOrId
from drkit_cli.options import settings_option
from drkit_cli.output import output_options, print_next, print_result
from drkit_cli.terminal import echo


@click.command(short_help="Look at your data, and write a recipe for it.")
@click.argument("collection", metavar="COLLECTION", type=CollectionName())
@settings_option("A setting of the collection: collection.dev_share=0.1")
@click.option("--encoder", metavar="PATH_OR_ID", type=PathOrId(), help="Start from an existing encoder.")
@click.option(
    "--scale", type=click.Choice(["paper", "small", "quick"]), help="Instead of the suggested one; see drkit compose."
)
@click.option(
    "-o",
    "--output",
    default="recipe.toml",
    show_default=True,
    type=LocalPath(dir_okay=False),
    help="The recipe; never overwritten.",
)
@output_options
def init(collection: str, settings: tuple[str, ...], encoder: str | None, scale: str | None, output: Path) -> None:
    r"""Look at COLLECTION, a path or NAME:VALUE, and write a commented recipe that runs as it is.

    The format is detected. Counts, lengths, scripts, duplicates and judgements are printed and kept as
    comments, with a suggested scale and why.

    \b
    drkit init FOLDER
    drkit init jsonl:texts.jsonl -o texts.toml
    drkit init faq.csv -o faq.toml --columns query=Frage,text=Antwort
    """
    from drkit.commands import collect_facts, describe_facts, suggest_recipe, write_starter
    from drkit.core.processes import local_device
    from drkit.recipe import find_collection

    if output.exists():
        raise DrkitError(f"{output} exists and is not overwritten; remove it, or choose another file with -o")
    parts = installed()
    facts = collect_facts(find_collection(collection, parts, settings), settings)
    found = suggest_recipe(facts, parts, encoder=encoder, scale=scale, has_gpu=local_device() != "cpu")
    write_starter(found, facts, output, parts.registry)
    lines = [*describe_facts(facts), f"scale: {found.scale}, {found.why}", *(f"note: {one}" for one in found.advice)]
    document = {
        "recipe": output,
        "facts": attrs.asdict(facts),
        "scale": found.scale,
        "why": found.why,
        "reasons": found.reasons,
        "advice": found.advice,
    }
    print_result(document, lambda: echo("\n".join([*lines, f"recipe: {output}"])))
    print_next(f"use     drkit run {output} --dry-run")
