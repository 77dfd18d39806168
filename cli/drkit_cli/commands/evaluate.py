"""`drkit evaluate`: evaluate rankings in files, or an encoder on a collection or on data sets in BEIR's layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from drkit.core.files import local_path
from drkit.core.quantities import counted
from drkit.core.registry import installed
from drkit.data.rows import COMPRESSED
from drkit.encoders.declarations import CONFIG, MODULES
from drkit.errors import DrkitError
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import read_recipe
from drkit.runs.manifest import read_manifest
from drkit_cli.names import LocalPath, PathOrId
from drkit_cli.options import OF_ENCODER, backend_option, encoder_options, judgement_options, refuse_options
from drkit_cli.output import output_options, print_note, print_result, show_progress

if TYPE_CHECKING:
    from drkit.commands import BeirTable
    from drkit.evaluate import Scores
    from drkit.recipe.published import BesideThePaper
    from drkit.recipe.schema import Recipe

_FILE = LocalPath(dir_okay=False)


@click.command(short_help="Evaluate rankings, runs and encoders.")
@click.argument("sources", metavar="RUN_OR_TREC_FILE", nargs=-1)
@judgement_options
@click.option(
    "--answers",
    type=_FILE,
    help="Judge the hits of a run by this file's answers, as DPR does: with -m Success@20.",
)
@click.option("--per-query", type=_FILE, help="Also write every query's values, as TSV.")
@click.option(
    "--encoder", metavar="FOLDER_OR_RUN", type=PathOrId(), help="An encoder to evaluate on --collection or --beir."
)
@backend_option
@click.option("--beir", type=LocalPath(file_okay=False), help="A folder of folders in BEIR's layout.")
@click.option(
    "-o",
    "--output",
    type=LocalPath(),
    default="runs/beir",
    show_default=True,
    help="With --encoder: where its rankings are kept.",
)
@output_options
@encoder_options
def evaluate(
    sources: tuple[str, ...],
    qrels: Path | None,
    collection: str | None,
    settings: tuple[str, ...],
    split: str | None,
    measures: tuple[str, ...],
    exclude_self: bool,
    answers: Path | None,
    per_query: Path | None,
    encoder: str | None,
    backend: str,
    beir: Path | None,
    output: Path,
    encoder_settings: Mapping[str, Any],
) -> None:
    r"""Evaluate the systems of a run, any TREC run file, or an encoder on a collection or every data set of a folder.

    \b
    drkit evaluate runs/R --measures "RR@10 AP"
    drkit evaluate bm25.trec --qrels qrels.txt --per-query values.tsv
    drkit evaluate runs/NQ --answers questions.jsonl -m "Success@20 Success@100"
    drkit evaluate --encoder runs/R --collection beir:FOLDER
    drkit evaluate --encoder runs/R --beir DATASETS
    """
    if per_query and per_query.suffix != ".tsv":
        raise DrkitError(f"values of queries are written as TSV; name the file {per_query.stem}.tsv", where=per_query)
    how: dict[str, Any] = {"measures": measures, "exclude_self": exclude_self}
    _check_sources(sources, encoder, collection)
    if not encoder:
        refuse_options(("beir", "backend", *OF_ENCODER), "without --encoder")
        if not sources:
            raise click.UsageError("give a run's folder, a TREC run file, or --encoder with --collection or --beir")
        judged: dict[str, Any] = {"collection": collection, "settings": settings}
        if answers:
            refuse_options(("qrels", "split"), "with --answers, which judges all hits")
        judged |= {"answers": answers} if answers else {"qrels": qrels, "split": split}
        scores, draws = _score_files(sources[0], judged, **how)
        is_own = not any((collection, settings, qrels, split, answers))
        _print_scores(scores, draws, per_query, _beside_the_paper(sources[0], scores) if is_own else [])
        return
    refuse_options(("sources", "qrels", "answers"), "with --encoder")
    if (collection is None) == (beir is None):
        raise click.UsageError("--encoder goes with --collection NAME or --beir FOLDER")
    how |= {"measures": measures or ("nDCG@10",), "how": {**encoder_settings, "backend": backend}}
    if beir is None:
        _print_scores(_score_encoder(encoder, output, how, str(collection), settings, split or "test"), {}, per_query)
    else:
        refuse_options(("settings", "split", "per_query"), "with --beir, which evaluates each data set as it is")
        _print_beir(encoder, output, how, beir)


def _check_sources(sources: Sequence[str], encoder: str | None, collection: str | None) -> None:
    """Raise UsageError for an encoder or judgements among the arguments, with the line to type, and for several."""
    if encoder or not sources:
        return
    first, *others = sources
    if _is_encoder(local_path(first)):
        found = collection or (others[0] if others else "beir:FOLDER")
        raise click.UsageError(f"{first} is an encoder; write `drkit evaluate --encoder {first} --collection {found}`")
    if others:
        run, qrels = (others[0], first) if _has_judgements(first) else (first, others[0])
        raise click.UsageError(
            f"expected one run, got {' '.join(sources)}; write `drkit evaluate {run} --qrels {qrels}`, or "
            f"`drkit compare {' '.join(sources)}` for several runs"
        )
    if _has_judgements(first):
        raise click.UsageError(f"{first} has judgements, not rankings; write `drkit evaluate RUN --qrels {first}`")


def _is_encoder(folder: Path) -> bool:
    return (folder / MODULES).is_file() or (folder / CONFIG).is_file()


def _has_judgements(source: str) -> bool:
    """Return whether a file has the columns of judgements, which trec_eval takes first: query, 0, passage, grade."""
    path = local_path(source)
    if not path.is_file() or path.suffix in (*COMPRESSED, ".arrow"):
        return False
    with path.open(encoding="utf-8", errors="replace") as lines:
        cells = next(lines, "").split()
    return len(cells) in (3, 4) and cells[-1].lstrip("-").isdecimal()


def _score_files(
    source: str, judged: Mapping[str, Any], *, measures: Sequence[str], exclude_self: bool
) -> tuple[Sequence[tuple[str, Scores]], Mapping[str, int]]:
    """Return the scores of the systems in files, and the number of draws that each averages.

    judged: the arguments that choose the judgements.
    """
    from drkit.commands import evaluate_files, find_judgements, find_systems, judge_by_answers

    systems = find_systems([source])
    found = (judge_by_answers if "answers" in judged else find_judgements)(systems, **judged)
    scores = evaluate_files(systems, found, measures or None, exclude_self=exclude_self, note=print_note)
    return scores, {system.name: len(system.files) for system in systems}


def _score_encoder(
    encoder: str, output: Path, how: Mapping[str, Any], name: str, settings: tuple[str, ...], split: str
) -> Sequence[tuple[str, Scores]]:
    """Return the scores of an encoder on a collection."""
    from drkit.commands import EncoderEvaluation, NamedCollection
    from drkit.commands.encoder_evaluation import short_name

    collection = NamedCollection(name, settings)
    with show_progress(1) as progress:
        scores = EncoderEvaluation(encoder, output, progress=progress, **how).on_collection(collection, split)
    return [(short_name(encoder), scores)]


def _beside_the_paper(source: str, scores: Sequence[tuple[str, Scores]]) -> list[BesideThePaper]:
    """Return the values of a run beside those of its paper; empty for another source."""
    from drkit.recipe.published import beside_the_paper

    means = {name: {measure: one.mean(measure) for measure in one.measures} for name, one in scores}
    stored = read_manifest(local_path(source) / "collection")
    counts = stored.metrics if stored else None
    return _of_its_paper(source, lambda recipe: beside_the_paper(recipe, means, installed().recipes, counts))


def _beside_beir(encoder: str, found: BeirTable) -> list[BesideThePaper]:
    """Return the values of a run on data sets of BEIR beside those of its paper; empty for another encoder."""
    from drkit.recipe.published import beside_beir

    exported = read_manifest(local_path(encoder) / "encoder")
    if exported is None:
        return []
    system = str(exported.metrics["from"])
    return _of_its_paper(
        encoder, lambda recipe: beside_beir(recipe, system, found.means, found.sizes, installed().recipes)
    )


def _of_its_paper(run: str, find: Callable[[Recipe], list[BesideThePaper]]) -> list[BesideThePaper]:
    """Return what `find` finds for the recipe of a run; empty, with a note, for one that drkit does not know."""
    path = local_path(run) / RECIPE
    if not path.is_file():
        return []
    try:
        return find(read_recipe(path, installed().registry))
    except DrkitError as error:  # another version's name of the row, or a plugin that is not installed
        print_note(f"nothing beside the paper: {error}")
        return []


def _print_scores(
    scores: Sequence[tuple[str, Scores]],
    draws: Mapping[str, int],
    per_query: Path | None,
    beside: Sequence[BesideThePaper] = (),
) -> None:
    from drkit.evaluate import comparison
    from drkit.evaluate.measures import write_per_query
    from drkit.evaluate.systems import table_caption
    from drkit_cli.render import console, score_table

    rows = [attrs.asdict(row) for row in comparison(scores)]
    queries = scores[0][1].queries

    def draw() -> None:
        screen = console()
        screen.print(score_table(counted(queries, "query"), [*rows[0]["values"]], rows))
        if len(rows) > 1:
            screen.print(table_caption(draws, scores[0][0]))
        _draw_beside(beside, "system")

    print_result({"queries": queries, "rows": rows, **_as_json(beside)}, draw)
    if per_query:
        write_per_query(per_query, scores)


def _draw_beside(beside: Sequence[BesideThePaper], what: str) -> None:
    from drkit_cli.render import console, table

    rows = [
        (one.system, one.measure, f"{one.paper:g}", f"{one.here:.3f}", f"{one.difference:+.3f}", one.table)
        for one in beside
    ]
    if rows:
        columns = (what, "measure", "paper", "here", "difference", "in")
        console().print(table("beside the paper", columns, rows))


def _as_json(beside: Sequence[BesideThePaper]) -> dict[str, Any]:
    found = [{**attrs.asdict(one), "difference": one.difference} for one in beside]
    return {"paper": found} if found else {}


def _print_beir(encoder: str, output: Path, how: Mapping[str, Any], folder: Path) -> None:
    from drkit.commands import EncoderEvaluation
    from drkit.commands.encoder_evaluation import data_sets
    from drkit_cli.render import console, table

    with show_progress(sum(map(len, data_sets(folder).values()))) as progress:
        found = EncoderEvaluation(encoder, output, progress=progress, **how).on_beir(folder)
    beside = _beside_beir(encoder, found)

    def draw() -> None:
        console().print(table("", ("data set", *found.measures), found.rows()))
        _draw_beside(beside, "data set")

    print_result({**found.as_json(), **_as_json(beside)}, draw)
