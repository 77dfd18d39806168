"""`drkit improve`: from an encoder, texts and labels to a better encoder, or to the evidence that it is not."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import click

from drkit.core.registry import installed
from drkit.data.splits import PSEUDO
from drkit_cli.names import Between, LocalPath, PathOrId
from drkit_cli.options import settings_option
from drkit_cli.output import output_options, print_note


@click.command(short_help="Tune your encoder on your texts and labels.")
@click.argument("encoder", metavar="ENCODER", type=PathOrId())
@click.option(
    "--texts",
    metavar="PATH|NAME:VALUE",
    multiple=True,
    required=True,
    help="Your texts: a folder or file, or a collection, such as beir:FOLDER; repeatable.",
)
@click.option("--labels", metavar="FILE", multiple=True, help="Queries with the id, path or title of their passages.")
@click.option("--minutes", type=Between(0.5, 10_000), default=10.0, show_default=True, help="Time for all of it.")
@settings_option("A setting: finetune.learning_rate=2e-5")
@click.option("--run-dir", type=LocalPath(), help="Folder of the run (default: runs/TEXTS-improve).")
@click.option("-o", "--output", type=LocalPath(), help="Also copy the encoder folder here; never overwritten.")
@click.option("--dry-run", is_flag=True, help="Print the plan, its time and its memory, and stop.")
@output_options
def improve(
    encoder: str,
    texts: tuple[str, ...],
    labels: tuple[str, ...],
    minutes: float,
    settings: tuple[str, ...],
    run_dir: Path | None,
    output: Path | None,
    dry_run: bool,
) -> None:
    r"""Tune ENCODER, a folder or hub id, on labels or on queries made from the texts, and say whether it gained.

    No labelled query is ranked by a retriever that has learned from it (cross-validation, or labels that are held
    out). The encoder folder is the tuned one if the numbers show that it is better, and else your own. A repeated
    command resumes the run.

    \b
    drkit improve ENCODER --texts articles/ --labels questions.csv
    drkit improve ENCODER --texts articles/
    drkit improve ENCODER --texts beir:FOLDER --minutes 30 -o better
    drkit improve ENCODER --texts beir:FOLDER --dry-run
    """
    from drkit.commands.improve import (
        Improvement,
        copy_encoder,
        encoder_folder,
        fit,
        name_collection,
        name_run,
        refuse_existing,
        resumed,
    )
    from drkit_cli.running import run_recipe

    if output and not dry_run:
        refuse_existing(output)
    parts, encoder = installed(), encoder_folder(encoder)
    collection, own = name_collection(texts, labels, parts)
    settings = (*own, *settings)
    run = run_dir or Path("runs") / name_run(encoder, collection, settings, parts)
    if recipe := resumed(run, encoder, collection, settings, parts):
        found = Improvement(recipe, (f"{run} goes on with the numbers in its recipe; another --run-dir starts anew",))
    else:
        found = fit(encoder, collection, parts, settings=settings, minutes=minutes)
    run_recipe(
        found.recipe,
        parts.registry,
        run_dir=run,
        dry_run=dry_run,
        redo=False,
        notes=found.notes,
        rates=found.rates,
    )
    if not dry_run and found.recipe.evaluation.split == PSEUDO:
        tuned = run / found.recipe.finetune.rounds[-1].name if found.recipe.finetune else run
        print_note(
            f"the encoder that is tuned on made queries is in the run, too: drkit export {quote(str(tuned))} -o FOLDER "
            f"writes its folder, and drkit search {quote(str(run))} --system {tuned.name} QUERY searches with it"
        )
    if output and not dry_run:
        copy_encoder(run, output)
        print_note(f"the encoder folder is {output}")
