"""`drkit compare`: compare systems, with significance tests and the queries that differ most."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from drkit_cli.names import count
from drkit_cli.options import judgement_options
from drkit_cli.output import output_options, print_note, print_result
from drkit_cli.terminal import echo


@click.command(short_help="Test whether systems differ, query by query.")
@click.argument("sources", metavar="A B [C ..]", nargs=-1, required=True)
@judgement_options
@click.option("--all-pairs", is_flag=True, help="Compare all pairs, not only with the first system.")
@click.option("--queries", "shown", default=5, show_default=True, type=count(0), help="Number of queries to list.")
@output_options
def compare(
    sources: tuple[str, ...],
    qrels: Path | None,
    collection: str | None,
    settings: tuple[str, ...],
    split: str | None,
    measures: tuple[str, ...],
    exclude_self: bool,
    all_pairs: bool,
    shown: int,
) -> None:
    r"""Compare systems query by query; the first one is the baseline.

    A, B .. are RUN:SYSTEM, a run's folder (all its systems) or a TREC run file. Paired two-tailed t-tests, corrected by
    Holm over all comparisons made; 95 % intervals; wins, ties and losses; the queries that gain and lose most.

    \b
    drkit compare runs/R:bm25 runs/R:retriever-2
    drkit compare bm25.trec dense.trec --qrels qrels.txt --measures RR@10 --json
    """
    from drkit.commands import evaluate_files, find_judgements, find_systems
    from drkit.evaluate import compare as compare_scores
    from drkit.evaluate import versus_markdown

    systems = find_systems(sources)
    judged = find_judgements(systems, qrels=qrels, collection=collection, split=split, settings=settings)
    scores = evaluate_files(systems, judged, measures or None, exclude_self=exclude_self, note=print_note)
    found = compare_scores(scores, all_pairs=all_pairs, shown=shown)
    print_result(
        {"comparisons": [attrs.asdict(one) for one in found]}, lambda: echo(versus_markdown(found, judged.texts))
    )
