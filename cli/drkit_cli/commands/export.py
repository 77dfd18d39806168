"""`drkit export`: write an encoder folder from any checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from drkit_cli.names import CollectionName, InstalledName, LocalPath, count
from drkit_cli.options import pooling_option
from drkit_cli.output import output_options, print_result
from drkit_cli.terminal import echo


@click.command(short_help="Write an encoder folder from a checkpoint.")
@click.argument("source", metavar="RUN_OR_CHECKPOINT")
@pooling_option
@click.option(
    "--dimension",
    type=count(1),
    help="Keep only the first numbers of every vector, normalised again; for the loss matryoshka.",
)
@click.option(
    "--backend",
    "backends",
    type=InstalledName("backend"),
    multiple=True,
    help="Also convert to it (`drkit list backend`); repeatable.",
)
@click.option(
    "--calibrate",
    metavar="RUN|NAME:VALUE",
    type=CollectionName(),
    help="A sample of passages, for a backend that needs one (default: the run's).",
)
@click.option("-o", "--output", required=True, type=LocalPath(), help="The encoder folder.")
@output_options
def export(
    source: str,
    pooling: str | None,
    dimension: int | None,
    backends: tuple[str, ...],
    calibrate: str | None,
    output: Path,
) -> None:
    r"""Write an encoder folder for SentenceTransformer and AutoModel, without head and decoder, with declared pooling.

    Of a run, it is the retriever that was best on dev, with a model card of its results, training and limits; without
    the card if its vectors are cut by --dimension, because the results are those of whole vectors.

    \b
    drkit export runs/R -o encoder/
    drkit export runs/R/retriever-1 -o encoder/
    drkit export runs/R --dimension 64 -o encoder-64/
    drkit export runs/R --backend openvino-int8 -o encoder-int8/
    """
    from drkit.commands import NamedCollection, export_checkpoint, write_model_card
    from drkit.core.registry import installed
    from drkit.runs.manifest import read_manifest

    sample = NamedCollection(calibrate) if calibrate else None
    folder = export_checkpoint(
        source, output, pooling=pooling, dimension=dimension, backends=backends, calibrate=sample
    )
    if dimension is None and all(read_manifest(Path(source) / stage) for stage in ("encoder", "collection")):
        write_model_card(Path(source), folder, installed())
    print_result({"encoder": folder}, lambda: echo(f"encoder  {folder}"))
