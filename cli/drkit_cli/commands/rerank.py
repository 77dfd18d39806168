"""`drkit rerank`: re-rank a run with a cross-encoder."""

from __future__ import annotations

from pathlib import Path

import click

from drkit.core.quantities import counted
from drkit_cli.names import InputPath, LocalPath, count
from drkit_cli.options import (
    collection_option,
    cross_encoder_option,
    device_option,
    precision_option,
    settings_option,
    token_budget_option,
)
from drkit_cli.output import output_options, print_note, print_result, show_progress
from drkit_cli.terminal import echo


@click.command(short_help="Re-rank a run with a cross-encoder.")
@click.argument("run", metavar="RUNFILE", type=InputPath())
@cross_encoder_option("--model")
@collection_option
@settings_option()
@click.option("--split", default="test", show_default=True, help="Whose queries the run ranks.")
@click.option("--depth", default=200, show_default=True, type=count(1), help="Passages per query to re-rank.")
@token_budget_option
@precision_option
@device_option
@click.option("-o", "--output", required=True, type=LocalPath(dir_okay=False), help="The new TREC run.")
@output_options
def rerank(
    run: Path,
    model: str,
    collection: str,
    settings: tuple[str, ...],
    split: str,
    depth: int,
    token_budget: int,
    precision: str,
    device: str,
    output: Path,
) -> None:
    r"""Re-rank the first passages of every query of RUNFILE; the others stay below, in their order.

    \b
    drkit rerank bm25.trec --model runs/R --collection runs/R -o reranked.trec
    drkit rerank bm25.trec --model cross-encoder/ms-marco-MiniLM-L6-v2 \
        --collection FOLDER -o reranked.trec
    """
    from drkit.commands import NamedCollection, open_reranker, rerank_file

    passages = NamedCollection(collection, settings)
    scorer = open_reranker(model, device, token_budget=token_budget, precision=precision)
    with show_progress(1) as progress:
        progress.begin("rerank", f"the first {depth} of {run}")
        counts = rerank_file(
            run,
            scorer,
            passages,
            output,
            split=split,
            depth=depth,
            on_progress=lambda done: progress.advance(done, None, "queries"),
        )
    ranked, unknown, missing = (counts[name] for name in ("ranked", "queries", "passages"))
    print_result(
        {"file": output, "queries": ranked, "other_queries": unknown, "missing_passages": missing},
        lambda: echo(f"run      {output}: {counted(ranked, 'query')} re-ranked by {model}"),
    )
    if unknown:
        print_note(f"{counted(unknown, 'query')} not among the {split} queries: ranked as before")
    if missing:
        print_note(f"{counted(missing, 'passage')} not in the collection: ranked below the others")
