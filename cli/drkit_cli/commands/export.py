"""`drkit export`: write an encoder folder from any checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from drkit.encoders.pooling import POOLINGS
from drkit_cli.names import LocalPath
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo


@click.command(short_help="Write an encoder folder from a checkpoint.")
@click.argument("source", metavar="RUN_OR_CHECKPOINT")
@click.option("--pooling", type=click.Choice(list(POOLINGS)), help="For a checkpoint that does not declare it.")
@click.option("-o", "--output", required=True, type=LocalPath(), help="The encoder folder.")
@output_options
def export(source: str, pooling: str | None, output: Path) -> None:
    r"""Write an encoder folder for SentenceTransformer and AutoModel, without head and decoder, with declared pooling.

    \b
    drkit export runs/R -o encoder/
    drkit export runs/R/retriever-1 -o encoder/
    """
    from drkit.commands import export_checkpoint

    folder = export_checkpoint(source, output, pooling=pooling)
    print_result({"encoder": folder}, lambda: echo(f"encoder  {folder}"))
