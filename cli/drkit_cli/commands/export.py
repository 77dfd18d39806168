"""`drkit export`: the encoder folder that others load, from any checkpoint."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("source", metavar="RUN_OR_CHECKPOINT")
@click.option("--pooling", type=click.Choice(["cls", "mean"]), help="Of a checkpoint that does not say it.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The encoder folder.")
def export(source: str, pooling: str | None, output: Path) -> None:
    r"""Write a clean encoder folder for SentenceTransformer and AutoModel: no head, no decoder, pooling declared.

    \b
    drkit export runs/R -o encoder/
    drkit export runs/R/retriever-1 -o encoder/
    """
    from drkit.commands import export_checkpoint

    click.echo(f"encoder  {export_checkpoint(source, output, pooling=pooling)}")
