"""`drkit prune`: remove the weights of a finished run that nothing outside it reads."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from drkit.core.registry import installed
from drkit_cli.names import LocalPath
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo


@click.command(short_help="Remove weights that a finished run no longer needs.")
@click.argument("run", metavar="RUN", type=LocalPath())
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@output_options
def prune(run: Path, dry_run: bool) -> None:
    r"""Remove the weights and indexes of a finished RUN that are neither exported nor needed to use it.

    What stays: the folders encoder, index, bm25, pretrained, pretrained@STEP and reranker, the checkpoint of the
    exported retriever, and all results. If you resume the run later, stages that need removed
    weights are redone.

    \b
    drkit prune runs/R --dry-run
    drkit prune runs/R
    """
    from drkit.commands import prune_run
    from drkit_cli.render import console, format_megabytes, table

    removed = prune_run(run, installed().registry, dry_run=dry_run)
    freed = sum(one.bytes for one in removed)

    def draw() -> None:
        rows = [(one.stage, f"{one.files:,}", format_megabytes(one.bytes)) for one in removed]
        if rows:
            console().print(table("", ("stage", "files", "freed"), rows))
        echo(f"{'would free' if dry_run else 'freed'} {format_megabytes(freed)} of {run}")

    stages = [attrs.asdict(one) for one in removed]
    print_result({"run": run, "dry_run": dry_run, "bytes": freed, "stages": stages}, draw)
