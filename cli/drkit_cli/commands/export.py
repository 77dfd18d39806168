"""`drkit export`: write an encoder folder from any checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from drkit_cli.names import LocalPath
from drkit_cli.options import pooling_option
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo


@click.command(short_help="Write an encoder folder from a checkpoint.")
@click.argument("source", metavar="RUN_OR_CHECKPOINT")
@pooling_option
@click.option("-o", "--output", required=True, type=LocalPath(), help="The encoder folder.")
@output_options
def export(source: str, pooling: str | None, output: Path) -> None:
    r"""Write an encoder folder for SentenceTransformer and AutoModel, without head and decoder, with declared pooling.

    Of a run, it is the retriever that was best on dev, with a model card of its results, training and limits.

    \b
    drkit export runs/R -o encoder/
    drkit export runs/R/retriever-1 -o encoder/
    """
    from drkit.commands import export_checkpoint
    from drkit.core.registry import installed
    from drkit.pages import write_model_card
    from drkit.runs.manifest import read_manifest

    folder = export_checkpoint(source, output, pooling=pooling)
    if read_manifest(Path(source) / "encoder"):
        write_model_card(Path(source), folder, installed())
    print_result({"encoder": folder}, lambda: echo(f"encoder  {folder}"))
