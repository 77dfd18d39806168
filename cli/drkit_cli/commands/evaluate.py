"""`drkit evaluate`: evaluate rankings in files, or an encoder on data sets in BEIR's layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from drkit_cli.measures import measures_option

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("source", metavar="RUN_OR_TREC_FILE", required=False)
@click.option("--qrels", type=_FILE, help="Judgements: a file of TREC's four columns, or of BEIR's three.")
@click.option(
    "--collection", metavar="NAME[:VALUE]", help="Judgements of a collection: beir:FOLDER, or a run's folder."
)
@click.option("--set", "settings", metavar="PATH=VALUE", multiple=True, help="A setting: collection.train_share=0.5")
@click.option(
    "--split",
    type=click.Choice(["train", "dev", "test"]),
    help="Split of the judgements (default: test, or the run's).",
)
@measures_option
@click.option("--exclude-self", is_flag=True, help="Ignore hits whose id equals the query's.")
@click.option("--per-query", type=_FILE, help="Also write every query's values: .jsonl or .tsv.")
@click.option("--json", "as_json", type=_FILE, help="Also write the table to this file, as JSON.")
@click.option("--encoder", metavar="FOLDER_OR_RUN", help="An encoder to evaluate on --beir.")
@click.option("--beir", type=click.Path(path_type=Path, file_okay=False), help="A folder of folders in BEIR's layout.")
@click.option("--bm25", is_flag=True, help="With --beir: also rank by BM25.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="With --beir: where rankings are kept (runs/beir)."
)
def evaluate(
    source: str | None,
    qrels: Path | None,
    collection: str | None,
    settings: tuple[str, ...],
    split: str | None,
    measures: tuple[str, ...],
    exclude_self: bool,
    per_query: Path | None,
    as_json: Path | None,
    encoder: str | None,
    beir: Path | None,
    bm25: bool,
    output: Path | None,
) -> None:
    r"""Evaluate the systems of a run, any TREC run file, or an encoder on every data set of a folder.

    \b
    drkit evaluate runs/pydocs-pmi-enhanced --measures "RR@10 AP"
    drkit evaluate bm25.trec --qrels qrels.txt --per-query values.tsv
    drkit evaluate --encoder runs/pydocs-pmi-enhanced --beir datasets --bm25
    """
    if beir or encoder:
        if source or qrels or collection or not beir or not (encoder or bm25):
            raise click.UsageError("--beir FOLDER goes with --encoder or --bm25, and without a run or judgements")
        _beir(beir, encoder, measures, bm25=bm25, output=output, as_json=as_json)
        return
    if not source:
        raise click.UsageError("give a run's folder, a TREC run file, or --encoder and --beir")
    _files(source, (qrels, collection, split, settings), measures, exclude_self, per_query, as_json)


def _files(
    source: str,
    against: tuple[Path | None, str | None, str | None, Sequence[str]],
    measures: Sequence[str],
    exclude_self: bool,
    per_query: Path | None,
    as_json: Path | None,
) -> None:
    import attrs

    from drkit.commands import evaluate_files, find_judgements, find_systems
    from drkit.evaluate import comparison
    from drkit.evaluate.measures import check_values_file, write_json, write_per_query
    from drkit.evaluate.systems import table_caption
    from drkit_cli.measures import print_note, score_table
    from drkit_cli.render import console

    if per_query:
        check_values_file(per_query)
    qrels, collection, split, settings = against
    systems = find_systems([source])
    judged = find_judgements(systems, qrels=qrels, collection=collection, split=split, settings=settings)
    scores = evaluate_files(systems, judged, measures or None, exclude_self=exclude_self, note=print_note)
    rows = comparison(scores)
    screen = console()
    screen.print(score_table(rows))
    if len(rows) > 1:
        screen.print(table_caption({system.name: len(system.files) for system in systems}), markup=False)
    if per_query:
        write_per_query(per_query, scores)
    if as_json:
        write_json(as_json, {"queries": rows[0].queries, "rows": [attrs.asdict(row) for row in rows]})


def _beir(
    folder: Path,
    encoder: str | None,
    measures: Sequence[str],
    *,
    bm25: bool,
    output: Path | None,
    as_json: Path | None,
) -> None:
    from drkit.commands import evaluate_beir
    from drkit.commands.evaluation import data_sets
    from drkit.evaluate.measures import write_json
    from drkit_cli.progress import RichProgress
    from drkit_cli.render import console, table

    chosen = tuple(measures) or ("nDCG@10",)
    searches = sum(map(len, data_sets(folder).values())) * (bm25 + (encoder is not None))
    with RichProgress(searches) as progress:
        found = evaluate_beir(
            encoder, folder, output or Path("runs/beir"), measures=chosen, bm25=bm25, progress=progress
        )
    for measure in chosen:
        console().print(table(measure, ("data set", *found.systems), found.rows(measure)))
    if as_json:
        write_json(as_json, found.as_json())
