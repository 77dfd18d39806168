"""`drkit export`: write an encoder folder from any checkpoint, vectors as a Parquet file, or rankings as TREC runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drkit.core.registry import installed
from drkit_cli.names import CollectionName, InstalledName, LocalPath, PathOrId, count
from drkit_cli.options import open_collection_option, pooling_option, refuse_options, settings_option
from drkit_cli.output import output_options, print_result, show_progress
from drkit_cli.terminal import echo

if TYPE_CHECKING:
    from drkit.commands import NamedCollection


@click.command(short_help="Write an encoder folder, a file of vectors, or TREC runs.")
@click.argument("source", metavar="RUN_OR_CHECKPOINT|INDEX|VECTORS")
@pooling_option
@click.option(
    "--dimension",
    type=count(1),
    help="Keep only the first numbers of every vector, normalised again; for the loss matryoshka.",
)
@click.option(
    "--average",
    metavar="RUN_OR_CHECKPOINT",
    type=PathOrId(),
    multiple=True,
    help="Average the weights with those of another training from the same start; repeatable.",
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
@click.option("-o", "--output", type=LocalPath(), help="The encoder folder.")
@click.option(
    "--vectors",
    metavar="FILE.parquet",
    type=LocalPath(dir_okay=False),
    help="Instead of an encoder, write the vectors of a run, an index or a folder of vectors.",
)
@click.option(
    "--trec",
    metavar="FOLDER",
    type=LocalPath(file_okay=False),
    help="Instead of an encoder, write the rankings of a run as TREC runs, SYSTEM.trec.",
)
@open_collection_option
@settings_option()
@output_options
def export(
    source: str,
    pooling: str | None,
    dimension: int | None,
    average: tuple[str, ...],
    backends: tuple[str, ...],
    calibrate: str | None,
    output: Path | None,
    vectors: Path | None,
    trec: Path | None,
    collection: str | None,
    settings: tuple[str, ...],
) -> None:
    r"""Write an encoder folder for SentenceTransformer and AutoModel, without head and decoder, with declared pooling.

    Of a run, it is the retriever that was best on dev, with a model card of its results, training and limits; without
    the card if its vectors are cut by --dimension, because the results are those of whole vectors, or its weights are
    averaged with others (a soup), as those of several seeds.

    With --vectors, write the ids, texts and vectors of the passages to a file that vector stores read. The texts are
    those of the run, or of --collection.

    \b
    drkit export runs/R -o encoder/
    drkit export runs/R/retriever-1 -o encoder/
    drkit export runs/R --dimension 64 -o encoder-64/
    drkit export runs/R/retriever-1 --average runs/R/retriever-2 -o averaged/
    drkit export runs/R --backend openvino-int8 -o encoder-int8/
    drkit export runs/R --vectors passages.parquet
    drkit export vectors/ --collection beir:FOLDER --vectors passages.parquet
    drkit export runs/R --trec rankings/
    """
    from drkit.commands import NamedCollection, export_rankings

    of_encoder, of_vectors = (
        ("output", "pooling", "dimension", "average", "backends", "calibrate"),
        ("collection", "settings"),
    )
    if trec:
        refuse_options((*of_encoder, *of_vectors, "vectors"), "with --trec")
        files = export_rankings(source, trec)
        print_result({"files": files}, lambda: echo("\n".join(f"run      {file}" for file in files)))
    elif vectors:
        refuse_options(of_encoder, "with --vectors")
        _export_vectors(source, vectors, NamedCollection(collection, settings) if collection else None)
    elif output is None:
        raise click.UsageError("give -o FOLDER for an encoder, --vectors FILE.parquet, or --trec FOLDER for rankings")
    else:
        refuse_options(of_vectors, "without --vectors")
        sample = NamedCollection(calibrate) if calibrate else None
        how: dict[str, Any] = {"pooling": pooling, "dimension": dimension, "average": average}
        how |= {"backends": backends, "calibrate": sample}
        _export_encoder(source, output, **how)


def _export_encoder(source: str, folder: Path, **how: Any) -> None:
    """Export an encoder, with a model card if it is a run's own encoder."""
    from drkit.commands import export_checkpoint, write_model_card
    from drkit.runs.manifest import read_manifest

    is_whole = how["dimension"] is None and not how["average"]
    has_card = is_whole and all(read_manifest(Path(source) / stage) for stage in ("encoder", "collection"))
    finish = (lambda made: write_model_card(Path(source), made, installed())) if has_card else None
    made = export_checkpoint(source, folder, finish=finish, **how)
    print_result({"encoder": made}, lambda: echo(f"encoder  {made}"))


def _export_vectors(source: str, file: Path, collection: NamedCollection | None) -> None:
    from drkit.commands import export_vectors

    with show_progress(1) as progress:
        progress.begin("export", str(file))
        count, dimension = export_vectors(
            source,
            file,
            collection=collection,
            on_progress=lambda done, total: progress.advance(done, total, "passages"),
        )
    document = {"file": file, "vectors": count, "dimension": dimension}
    print_result(document, lambda: echo(f"vectors  {file}: {count:,} of {dimension}"))
