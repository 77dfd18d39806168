"""`drkit push-index`: push vectors and their passages to a vector store of another project."""

from __future__ import annotations

import click

from drkit_cli.names import PathOrId
from drkit_cli.options import device_option, open_collection_option, pooling_option, settings_option
from drkit_cli.output import output_options, print_result, show_progress
from drkit_cli.terminal import echo


@click.command(short_help="Push an index to a vector store.")
@click.argument("source", metavar="RUN|INDEX|VECTORS|ENCODER", type=PathOrId())
@click.argument("target", metavar="STORE:FOLDER|URL")
@click.option("--name", default="passages", show_default=True, help="Name of the table, collection or index.")
@click.option(
    "--payload",
    type=click.Choice(["id", "title", "text"]),
    help="What is stored beside a vector: the id; also the title; also the text (default: text, if it is known).",
)
@click.option("--replace", is_flag=True, help="Replace what an earlier push wrote there.")
@open_collection_option
@settings_option()
@pooling_option
@device_option
@output_options
def push_index(
    source: str,
    target: str,
    name: str,
    payload: str | None,
    replace: bool,
    collection: str | None,
    settings: tuple[str, ...],
    pooling: str | None,
    device: str,
) -> None:
    r"""Push vectors, with the ids, titles and texts of their passages, to a vector store, to search them there.

    STORE is lancedb, qdrant, usearch, opensearch or anserini. All are written to a folder on this machine; qdrant and
    opensearch also take the URL of a server. Vectors without a run need --collection for titles and texts, an encoder
    needs it for the passages that it encodes.

    \b
    drkit push-index runs/R lancedb:store/
    drkit push-index runs/R opensearch:requests/ --name passages --payload title
    drkit push-index vectors/ anserini:lucene/ --collection beir:FOLDER
    """
    from drkit.commands import NamedCollection
    from drkit.commands import push_index as push
    from drkit.search import StoreTarget

    where = StoreTarget.parse(target, name)
    with show_progress(1) as progress:
        progress.begin("push", str(where))
        done = push(
            source,
            where,
            collection=NamedCollection(collection, settings) if collection else None,
            payload=payload,
            replace=replace,
            pooling=pooling,
            device=device,
            on_progress=lambda count, total: progress.advance(count, total, "passages"),
        )
    stored = " and ".join(("id", *done.fields)) if len(done.fields) < 2 else "id, title and text"
    document = {"target": str(where), "name": name, "vectors": done.count, "dimension": done.dimension}
    print_result(
        {**document, "payload": ["id", *done.fields]},
        lambda: echo(f"pushed   {where} {name}: {done.count:,} vectors of {done.dimension}, with {stored}"),
    )
