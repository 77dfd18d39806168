"""`drkit mine`: mine hard negatives for a collection's queries into a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from drkit.core.quantities import counted
from drkit_cli.names import LocalPath, PartName, PathOrId, count
from drkit_cli.options import (
    collection_option,
    device_option,
    encoder_options,
    seed_option,
    settings_option,
)
from drkit_cli.output import output_options, print_result, show_progress
from drkit_cli.terminal import echo


@click.command(short_help="Mine hard negatives into a file.")
@collection_option
@click.option(
    "--miner",
    "miners",
    required=True,
    multiple=True,
    type=PartName("miner"),
    metavar="NAME[:VALUE]",
    help="First a source (dense, bm25, run-file:FILE ..), then any filters (margin, ranks:10-100 ..).",
)
@click.option(
    "--encoder", metavar="PATH_OR_ID", type=PathOrId(), help="For dense: a folder, a run, RUN/retriever-1, or a hub id."
)
@click.option(
    "--reranker", metavar="PATH_OR_ID", type=PathOrId(), help="Model of a cross-encoder-filter that names none."
)
@click.option("--split", default="train", show_default=True, help="The split whose judged queries get negatives.")
@click.option("--depth", type=count(1), help="Maximum negatives per query (default: depth of the source).")
@settings_option("margin.absolute=0.1, collection.limit=9")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["ids", "triplets", "sentence-transformers"]),
    default="ids",
    show_default=True,
    help="One line per query with ids, or texts for training elsewhere.",
)
@click.option(
    "--negatives",
    "count",
    default=0,
    type=count(0),
    help="Negatives to write per query (default: all; texts: 5).",
)
@click.option("--exclude-self", is_flag=True, help="Never use a passage whose id equals the query's.")
@device_option
@seed_option
@click.option("-o", "--output", required=True, type=LocalPath(dir_okay=False), help="The file: NAME.jsonl.")
@output_options
@encoder_options
def mine(
    collection: str,
    miners: tuple[str, ...],
    split: str,
    depth: int | None,
    settings: tuple[str, ...],
    format_: str,
    count: int,
    output: Path,
    encoder_settings: Mapping[str, Any],
    **models: Any,
) -> None:
    r"""Mine hard negatives: a source finds candidates, and filters drop some of them; dropped ones are counted.

    Judged positives are never negatives. The file appears once it is complete.

    \b
    drkit mine --collection beir:FOLDER --miner bm25 -o negatives.jsonl
    drkit mine --collection FOLDER --encoder runs/R --miner dense \
        --miner margin --set margin.share=0.9 -o n.jsonl
    drkit mine --collection runs/R --miner dense --miner ranks:10-100 \
        --format sentence-transformers -o train.jsonl
    """
    from drkit.commands import Miners, Output, mine_to_file

    of_collection = tuple(text for text in settings if text.startswith("collection."))
    of_miners = tuple(text for text in settings if text not in of_collection)
    with show_progress(1) as progress:
        progress.begin("mine", " > ".join(miners))
        done = mine_to_file(
            collection,
            Miners(miners, of_miners, encoder_settings=encoder_settings, **models),
            Output(output, format_, count),
            split=split,
            settings=of_collection,
            depth=depth,
            on_progress=lambda queries, total: progress.advance(queries, total, "queries"),
        )

    def draw() -> None:
        dropped = ", ".join(f"{reason} {number:,}" for reason, number in done["dropped"].items()) or "nothing"
        echo(f"queries    {done['queries']:,}, {done['queries_without']:,} of them without a negative")
        echo(f"negatives  {done['negatives']:,}, {done['negatives_per_query']:g} per query")
        echo(f"dropped    {dropped}")
        for name, model in done["models"].items():
            echo(f"model      {name} {model}")
        echo(f"file       {output}: {counted(done['lines'], 'line')}")

    print_result({"file": output, **done}, draw)
