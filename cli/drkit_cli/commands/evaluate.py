"""`drkit evaluate`: evaluate rankings in files, or an encoder on a collection or on data sets in BEIR's layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from drkit.errors import DrkitError
from drkit.recipe.schema import LANGUAGES
from drkit_cli.names import Between, LocalPath, PathOrId
from drkit_cli.options import judgement_options, reading_options
from drkit_cli.output import output_options, print_note, print_result, show_progress

if TYPE_CHECKING:
    from drkit.evaluate import Scores

_FILE = LocalPath(dir_okay=False)
# The scores of systems by name, and the number of draws that each averages.
Measured: TypeAlias = "tuple[Sequence[tuple[str, Scores]], Mapping[str, int]]"


@click.command(short_help="Evaluate rankings, runs and encoders.")
@click.argument("source", metavar="RUN_OR_TREC_FILE", required=False)
@judgement_options
@click.option(
    "--answers",
    type=_FILE,
    help="Judge the hits of a run by this file's answers, as DPR does: with -m Success@20.",
)
@click.option("--per-query", type=_FILE, help="Also write every query's values, as TSV.")
@click.option("--table", "table_file", type=_FILE, help="Also write the table to this file, as JSON.")
@click.option(
    "--encoder", metavar="FOLDER_OR_RUN", type=PathOrId(), help="An encoder to evaluate on --collection or --beir."
)
@click.option("--beir", type=LocalPath(file_okay=False), help="A folder of folders in BEIR's layout.")
@click.option("--bm25", is_flag=True, help="With --collection or --beir: rank by BM25 too, and by both; or alone.")
@click.option(
    "--bm25-k1",
    type=Between(0, 1_000_000, min_open=True),
    multiple=True,
    help="BM25's k1 (1.2); of several, with several b, the best on dev queries.",
)
@click.option("--bm25-b", type=Between(0, 1), multiple=True, help="BM25's b (0.75).")
@click.option(
    "--bm25-language", type=click.Choice(LANGUAGES), help="Language of BM25's stemmer and stop words (english)."
)
@click.option(
    "-o",
    "--output",
    type=LocalPath(),
    help="With --encoder or --bm25: where rankings are kept (runs/beir).",
)
@output_options
@reading_options
def evaluate(
    source: str | None,
    qrels: Path | None,
    collection: str | None,
    settings: tuple[str, ...],
    split: str | None,
    measures: tuple[str, ...],
    exclude_self: bool,
    answers: Path | None,
    per_query: Path | None,
    table_file: Path | None,
    encoder: str | None,
    beir: Path | None,
    bm25: bool,
    bm25_k1: tuple[float, ...],
    bm25_b: tuple[float, ...],
    bm25_language: str | None,
    output: Path | None,
    reading: Mapping[str, Any],
) -> None:
    r"""Evaluate the systems of a run, any TREC run file, or an encoder on a collection or every data set of a folder.

    \b
    drkit evaluate runs/R --measures "RR@10 AP"
    drkit evaluate bm25.trec --qrels qrels.txt --per-query values.tsv
    drkit evaluate runs/NQ --answers questions.jsonl --measures "Success@20 Success@100"
    drkit evaluate --encoder runs/R --collection beir:FOLDER --bm25
    drkit evaluate --encoder runs/R --beir DATASETS --bm25
    drkit evaluate --bm25 --bm25-b 0.75 --bm25-b 0.4 --collection beir:FOLDER
    """
    if (bm25_k1 or bm25_b or bm25_language) and not bm25:
        raise click.UsageError("--bm25-k1, --bm25-b and --bm25-language are settings of --bm25; give it, too")
    if reading and not encoder:
        raise click.UsageError("--pooling and prompts are those of --encoder; give it, too")
    pairs = tuple(product(bm25_k1 or (1.2,), bm25_b or (0.75,))) if bm25 else ()
    systems = {
        "encoder": encoder,
        "output": output or Path("runs/beir"),
        "measures": tuple(measures) or ("nDCG@10",),
        "bm25": pairs,
        "bm25_language": bm25_language or "english",
        "how": reading,
        "exclude_self": exclude_self,
    }
    searches = bool(pairs) + (encoder is not None)
    if beir:
        if source or qrels or collection or split or per_query or not (encoder or bm25):
            raise click.UsageError(
                "--beir FOLDER goes with --encoder or --bm25, and without a run, judgements, --split or --per-query"
            )
        _beir(beir, systems, searches, table_file)
        return
    if (encoder or bm25) and (source or qrels or not collection):
        raise click.UsageError("--encoder and --bm25 go with --collection NAME or --beir FOLDER, and without a run")
    if answers and (qrels or split or not source):
        raise click.UsageError("--answers FILE judges the hits of a run or a TREC run file, without --qrels or --split")
    if not (source or encoder or bm25):
        raise click.UsageError("give a run's folder, a TREC run file, or --encoder with --collection or --beir")
    if per_query and per_query.suffix != ".tsv":
        raise DrkitError(f"values of queries are written as TSV; name the file {per_query.stem}.tsv", where=per_query)
    if source:
        judged: dict[str, Any] = {"collection": collection, "settings": settings}
        judged |= {"answers": answers} if answers else {"qrels": qrels, "split": split}
        scores, draws = _read(source, judged, measures, exclude_self)
    else:
        scores, draws = _search(str(collection), settings, split or "test", systems, searches)
    _print(scores, draws, per_query, table_file)


def _read(source: str, judged: Mapping[str, Any], measures: Sequence[str], exclude_self: bool) -> Measured:
    """Return the scores of the systems in files; judged: the arguments that choose the judgements."""
    from drkit.commands import evaluate_files, find_judgements, find_systems, judge_by_answers

    systems = find_systems([source])
    found = (judge_by_answers if "answers" in judged else find_judgements)(systems, **judged)
    scores = evaluate_files(systems, found, measures or None, exclude_self=exclude_self, note=print_note)
    return scores, {system.name: len(system.files) for system in systems}


def _search(name: str, settings: tuple[str, ...], split: str, systems: Mapping[str, Any], searches: int) -> Measured:
    """Return the scores of an encoder, and of BM25, on a collection."""
    from drkit.commands import EncoderEvaluation, NamedCollection

    collection = NamedCollection(name, settings)
    with show_progress(searches) as progress:
        scores = EncoderEvaluation(**systems, progress=progress).on_collection(collection, split)
    return [*scores.items()], dict.fromkeys(scores, 1)


def _print(
    scores: Sequence[tuple[str, Scores]], draws: Mapping[str, int], per_query: Path | None, table_file: Path | None
) -> None:
    import attrs

    from drkit.core.files import write_text
    from drkit.evaluate import comparison
    from drkit.evaluate.measures import write_per_query
    from drkit.evaluate.systems import table_caption
    from drkit.recipe.toml import json_text
    from drkit_cli.render import console, score_table

    rows = comparison(scores)
    found = {"queries": rows[0].queries, "rows": [attrs.asdict(row) for row in rows]}

    def draw() -> None:
        screen = console()
        screen.print(score_table(rows))
        if len(rows) > 1:
            screen.print(table_caption(draws))

    print_result(found, draw)
    if per_query:
        write_per_query(per_query, scores)
    if table_file:
        write_text(table_file, json_text(found))


def _beir(folder: Path, systems: Mapping[str, Any], searches: int, table_file: Path | None) -> None:
    from drkit.commands import EncoderEvaluation
    from drkit.commands.encoder_evaluation import data_sets
    from drkit.core.files import write_text
    from drkit.recipe.toml import json_text
    from drkit_cli.render import console, table

    with show_progress(searches * sum(map(len, data_sets(folder).values()))) as progress:
        found = EncoderEvaluation(**systems, progress=progress).on_beir(folder)

    def draw() -> None:
        for measure in found.measures:
            console().print(table(measure, ("data set", *found.systems), found.rows(measure)))

    print_result(found.as_json(), draw)
    if table_file:
        write_text(table_file, json_text(found.as_json()))
