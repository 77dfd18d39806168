"""`drkit queries`: generate queries for a collection's passages with a language model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from drkit.core.engine import Loaded, open_engine
from drkit.core.processes import Shard
from drkit.errors import DrkitError
from drkit_cli.names import Between, LocalPath, PathOrId, count
from drkit_cli.options import engine_option, open_collection_option, seed_option, settings_option
from drkit_cli.output import output_options, print_next, print_result, show_progress
from drkit_cli.terminal import echo


@click.command(short_help="Generate queries for passages.")
@click.option(
    "--model",
    required=True,
    metavar="PATH_OR_ID",
    type=PathOrId(),
    help="A sequence-to-sequence or causal model: a folder or hub id.",
)
@open_collection_option
@settings_option()
@click.option("--count", default=5, show_default=True, type=count(1), help="Queries per passage.")
@click.option("--prefix", default="", help="Put before every passage, as in 'text2query: '.")
@click.option("--prompt", default="", help="What to ask the model, with {passage} in it; a causal one has a default.")
@click.option(
    "--top-p",
    default=0.95,
    show_default=True,
    type=Between(0, 1, min_open=True),
    help="Sample from the likeliest tokens, which have this probability together.",
)
@click.option("--top-k", default=25, show_default=True, type=count(1), help="Sample from this many tokens.")
@click.option("--max-new-tokens", default=64, show_default=True, type=count(1), help="Maximum tokens per query.")
@click.option(
    "--max-source-tokens",
    default=512,
    show_default=True,
    type=count(2),
    help="Maximum tokens per passage.",
)
@click.option("--batch-size", default=32, show_default=True, type=count(1), help="Passages per batch.")
@seed_option
@engine_option
@click.option("-o", "--output", required=True, type=LocalPath(dir_okay=False), help="The file: NAME.jsonl.")
@output_options
def queries(
    model: str, collection: str | None, settings: tuple[str, ...], engine: str, output: Path, **sampling: Any
) -> None:
    r"""Generate queries for every passage, once for any number of runs, to pre-train or fine-tune with them.

    An interrupted command resumes when repeated. torchrun and Ray share the work among processes.

    \b
    drkit queries --model M --prefix "text2query: " --collection FOLDER -o q.jsonl
    torchrun --nproc-per-node 8 -m drkit_cli.main \
        queries --model M --collection FOLDER -o q8.jsonl
    drkit queries --model M --collection FOLDER --engine ray:auto -o q-ray.jsonl
    """
    from drkit.commands import NamedCollection
    from drkit.data.generation import QueryModel, Sampling, generate_file

    if output.suffix != ".jsonl":
        raise DrkitError(f"queries are written as JSON Lines; name the file {output.stem}.jsonl", where=output)
    try:
        chosen = Sampling(**sampling)
    except ValueError as error:
        raise DrkitError(f"--prompt: {error.args[0]}") from None
    texts, shard = NamedCollection(collection or "pydocs", settings), Shard.from_environment()
    _ = texts.source  # its name may be wrong

    def passages() -> Iterator[tuple[str, str]]:
        yield from texts.contents()  # read once the model is known to open

    started = time.perf_counter()
    with open_engine(engine) as opened, show_progress(1) as progress:
        progress.begin("queries", f"{chosen.count} a passage of {texts.name}, by {model}, {shard.label}")
        done = generate_file(
            passages(),
            Loaded(QueryModel.open, model, chosen),
            output,
            shard=shard,
            engine=opened,
            on_progress=lambda count: progress.advance(count, None, "passages"),
        )
        progress.end("queries", time.perf_counter() - started)
    if done:
        print_result({"file": done}, lambda: echo(f"queries  {done}"))
        print_next(f"use      drkit compose --context query --set pretrain.decoders.main.context.queries=file:{done}")
        print_next(f"or       drkit compose --pipeline texts --set pseudo_queries.sources=file:{done}")
