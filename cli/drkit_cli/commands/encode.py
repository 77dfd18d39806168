"""`drkit encode`: encode the passages or queries of a collection into a folder of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from drkit.core.engine import Loaded, open_engine
from drkit_cli.names import LocalPath, PathOrId, count
from drkit_cli.options import (
    backend_option,
    collection_option,
    device_option,
    encoder_options,
    engine_option,
    precision_option,
    settings_option,
)
from drkit_cli.output import output_options, print_next, print_note, print_result, show_progress
from drkit_cli.terminal import echo


@click.command(short_help="Encode passages or queries into vectors.")
@click.option(
    "--encoder",
    required=True,
    metavar="PATH_OR_ID",
    type=PathOrId(),
    help="A folder, a run, RUN/retriever-1, or a hub id.",
)
@collection_option
@click.option("--split", help="Encode the queries of this split instead of the passages.")
@settings_option()
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16"]),
    default="float32",
    show_default=True,
    help="Numbers of the vectors.",
)
@click.option("--shard-size", default=16_384, show_default=True, type=count(1), help="Texts per shard.")
@precision_option
@backend_option
@device_option
@engine_option
@click.option("-o", "--output", required=True, type=LocalPath(), help="The folder of vectors.")
@output_options
@encoder_options
def encode(
    encoder: str,
    collection: str,
    split: str | None,
    settings: tuple[str, ...],
    dtype: str,
    shard_size: int,
    device: str,
    engine: str,
    output: Path,
    encoder_settings: Mapping[str, Any],
    **runtime: str,
) -> None:
    r"""Encode a collection into shards of vectors (.npy) with their ids (.arrow).

    An interrupted command resumes when repeated, and loses at most the current shard. Processes of torchrun, or
    machines of Ray, share the shards.

    \b
    drkit encode --encoder runs/R --collection beir:FOLDER -o vectors/
    drkit encode --encoder runs/R --collection FOLDER --split test -o queries/
    torchrun --nproc-per-node 8 -m drkit_cli.main \
        encode --encoder E --collection FOLDER -o vectors/
    drkit encode --encoder runs/R --collection FOLDER --engine ray:auto -o v/
    """
    from drkit.commands import encode_collection, open_encoder
    from drkit.search import Storage

    made_by = Loaded(open_encoder, encoder, device=device, **runtime, **encoder_settings)
    with open_engine(engine, device) as opened, show_progress(1) as progress:
        progress.begin("encode", f"{split + ' queries' if split else 'passages'} of {collection}")
        vectors = encode_collection(
            made_by,
            collection,
            output,
            split=split,
            settings=settings,
            storage=Storage(dtype=dtype, shard_size=shard_size),
            on_progress=lambda count: progress.advance(count, None, "texts"),
            engine=opened,
        )
    if vectors is None:
        print_note("this process is done; others are still writing their shards")
        return
    found = {"folder": output, "vectors": len(vectors), "dimension": vectors.dimension, "dtype": dtype}
    print_result(found, lambda: echo("vectors  {folder}: {vectors:,} of {dimension}, {dtype}".format(**found)))
    if not split:
        print_next(f"use      drkit index {output} -o ..")
