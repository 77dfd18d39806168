"""`drkit study`: a factorial design over choices, with effects and their intervals, or a search for the best."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import asdict

from drkit.recipe.compose import CHOICES
from drkit.recipe.toml import parse_value
from drkit_cli.names import Between, InstalledName, LocalPath, PathOrId, count
from drkit_cli.options import engine_option, open_collection_option, settings_option
from drkit_cli.output import output_options, print_next, print_result, show_progress

if TYPE_CHECKING:
    from drkit.runs.costs import Cost
    from drkit.studies.costs import Sharing
    from drkit.studies.design import Design
    from drkit.studies.results import Study
    from drkit.studies.search import SearchPlan, SearchRecord
    from drkit.studies.space import Space

# A comma outside brackets, which belong to a value.
_COMMA = re.compile(r",(?![^\[{]*[\]}])")
_NONE, _ALL = "none", "all"


@click.command(short_help="Compare combinations of choices: what each part adds.")
@click.argument("axes", nargs=-1, metavar="CHOICE=VALUE,VALUE..")
@click.option("--seeds", default="42", show_default=True, metavar="N,N..", help="Every combination runs with each.")
@click.option(
    "--search",
    metavar="HOURS",
    type=Between(0.001, 10_000),
    help="Search for the best combination by dev queries, in so many hours of wall-clock time; of all parts if no "
    "CHOICE is given.",
)
@click.option("--labels", metavar="N,N,all", help="Numbers of training queries; every combination learns from each.")
@click.option("--paper", type=InstalledName("recipe"), help="The recipe that all combinations start from.")
@click.option("--pipeline", type=InstalledName("pipeline"), help="How to fine-tune.")
@open_collection_option
@click.option("--encoder", metavar="PATH_OR_ID", type=PathOrId(), help="Start from an existing encoder.")
@settings_option("A setting of all combinations: pretrain.learning_rate=1e-4")
@click.option("--scale", type=click.Choice(["paper", "small", "quick"]), help="As for `drkit compose`.")
@click.option("--name", default="study", show_default=True, help="Name of the study, and of its folder.")
@click.option("--runs", type=LocalPath(), default="runs", show_default=True, help="Folder of the study's folder.")
@click.option("--dry-run", is_flag=True, help="Print the cells, what they share and the cost, and stop.")
@click.option("--processes", type=count(1, 1024), default=1, show_default=True, help="Runs made side by side.")
@engine_option
@output_options
def study(
    axes: tuple[str, ...],
    seeds: str,
    search: float | None,
    labels: str | None,
    settings: tuple[str, ...],
    name: str,
    runs: Path,
    dry_run: bool,
    processes: int,
    engine: str,
    **choices: str | None,
) -> None:
    r"""Make every combination of the given choices, and tell what each value adds.

    A choice is one of `drkit compose` (masker, decoder, loss ..) or a setting; its first value is the baseline. Equal
    stages are made once, and a repeated command keeps what is finished. RUNS/NAME/study.md has the effects, their
    intervals over seeds and queries, and the interactions, before labels and with each number of them.

    \b
    drkit study masker=uniform,pmi decoder=mlm,enhanced --dry-run
    drkit study masker=uniform,pmi decoder=mlm,enhanced --seeds 1,2,3
    drkit study decoder=mlm,enhanced --labels 200,2000,all --processes 2
    drkit study pretrain.max_steps=500,1000 --paper retromae --name steps
    drkit study --search 2 --dry-run
    """
    if not axes and search is None:
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=context.command.params[0])
    chosen: dict[str, Any] = {key: value for key, value in choices.items() if value is not None}
    for setting in settings:
        path, _, value = setting.partition("=")
        found = _value(path.strip(), value.strip())
        chosen[path.strip()] = tuple(found) if isinstance(found, list) else found
    numbers, chosen = _numbers("--seeds", seeds, "1,2,3"), {**chosen, **_axes(axes, chosen)}
    if search is None:
        _study(runs / name, numbers, _labels(labels), chosen, processes, engine, dry_run)
        return
    if labels is not None or len(numbers) > 1:
        raise click.UsageError(
            "--search compares compositions with one seed and one number of labels: give --seeds one number, and "
            "--set finetune.rounds.0.queries=N instead of --labels"
        )
    _search(runs / name, search, numbers[0], chosen, processes, engine, dry_run)


def _study(
    folder: Path,
    seeds: tuple[int, ...],
    labels: tuple[int | None, ...],
    chosen: Mapping[str, Any],
    processes: int,
    engine: str,
    dry_run: bool,
) -> None:
    from drkit.studies.design import design_study
    from drkit.studies.results import make_study, read_study

    design = design_study(folder=folder, seeds=seeds, labels=labels, **chosen)
    if dry_run:
        _print_plan(design, processes)
        return
    with show_progress(1) as progress:
        make_study(design, processes=processes, engine=engine, progress=progress)
    found = read_study(design)
    page = found.write()
    document = {"study": design.folder, "page": page, "effects": found.effects(), "cells": found.table()}
    print_result(document, lambda: _print(found))
    print_next(f"page     {page}")


def _search(
    folder: Path, hours: float, seed: int, chosen: Mapping[str, Any], processes: int, engine: str, dry_run: bool
) -> None:
    from drkit.studies.search import plan_search, run_search
    from drkit.studies.search_page import winner_line, write_search
    from drkit.studies.space import open_space

    space = open_space(folder=folder, seed=seed, **chosen)
    plan = plan_search(space, hours)
    if dry_run:
        _print_rungs(plan)
        return
    with show_progress(len(plan.rungs) or 1) as progress:
        record = run_search(plan, hours, processes=processes, engine=engine, progress=progress)
    page, line = write_search(record, space), winner_line(record, space)
    document = {
        "search": folder,
        "page": page,
        "winner": record.winner,
        "command": line,
        "equal": list(record.equal),
        "hours": record.spent / 3600,
        "rungs": [asdict(rung) for rung in record.finished],
        "correlations": record.correlations(),
    }
    print_result(document, lambda: _draw_search(record, space))
    print_next(f"page     {page}")
    print_next(line)


def _print_rungs(plan: SearchPlan) -> None:
    from drkit_cli.render import cost_document

    space, drawn = plan.space, plan.drawn
    document = {
        "search": space.folder,
        "axes": {axis: list(map(str, levels)) for axis, levels in space.axes.items()},
        "combinations": space.combinations,
        "drawn": drawn.tried,
        "compositions": [dict(cell.levels) for cell in drawn.cells],
        "left_out": {**space.left_out, **drawn.left_out},
        "rungs": [asdict(rung) for rung in plan.rungs],
        "cost": cost_document(plan.cost),
    }
    print_result(document, lambda: _draw_rungs(plan))


def _draw_rungs(plan: SearchPlan) -> None:
    from drkit.studies.search_page import describe_drawn
    from drkit_cli.render import console, table

    screen, space, drawn = console(), plan.space, plan.drawn
    for axis, levels in space.axes.items():
        screen.print(f"{axis}: {', '.join(map(str, levels))}", markup=False, soft_wrap=True)
    for name, why in space.left_out.items():
        screen.print(f"left out: {name}: {why}", markup=False, soft_wrap=True)
    screen.print(describe_drawn(space.combinations, drawn.tried, len(drawn.cells)), markup=False, soft_wrap=True)
    for why, number in drawn.left_out.items():
        screen.print(f"cannot be composed ({number}): {why}", markup=False, soft_wrap=True)
    if not plan.rungs:
        screen.print("The rungs are planned when a first short run has been timed: no earlier run here shows the time.")
        return
    rows = [
        (str(number), f"{rung.compositions:,}", f"{rung.steps:,}", f"{rung.seconds / 60:,.1f}")
        for number, rung in enumerate(plan.rungs, start=1)
    ]
    screen.print(table("", ("rung", "compositions", "steps", "minutes"), rows))
    screen.print(f"in all   {plan.cost} on this machine; times are measured again after each rung", soft_wrap=True)


def _draw_search(record: SearchRecord, space: Space) -> None:
    from drkit.studies import search_page
    from drkit_cli.render import console, table

    screen, last = console(), record.finished[-1]
    for line in search_page.search_headline(record):
        screen.print(line, markup=False, soft_wrap=True)
    screen.print(table("", search_page.RUNGS, search_page.rung_rows(record)))
    screen.print(table("", search_page.CORRELATIONS, search_page.correlation_rows(record)))
    header = search_page.score_header(record, space)
    screen.print(table("last rung", header, search_page.score_rows(last, space)))


def _axes(axes: tuple[str, ...], chosen: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the values of each axis. Raises UsageError for all that are not axes, or chosen twice."""
    found: dict[str, list[Any]] = {}
    problems = []
    for axis in axes:
        path, equals, values = (part.strip() for part in axis.partition("="))
        path = path.replace("-", "_") if "." not in path else path
        if not (path and equals and values):
            problems.append(f"{axis!r} is not an axis; expected CHOICE=VALUE,VALUE, as in masker=uniform,pmi")
        elif path in found or path in chosen:
            problems.append(f"{path!r} is chosen twice; give all its values in one axis, as in {path}=A,B")
        else:
            found[path] = [_value(path, value.strip()) for value in _COMMA.split(values)]
    if problems:
        raise click.UsageError("; ".join(problems))
    return found


def _value(path: str, text: str) -> Any:
    """Return a value as `--set` takes it, where `none` leaves a table out; of a choice, the name."""
    if path in CHOICES:
        return text
    return None if text == _NONE else parse_value(text)


def _numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"{option} {text!r}: expected whole numbers, as in {example}")
    return tuple(map(int, numbers))


def _labels(text: str | None) -> tuple[int | None, ...]:
    if text is None:
        return (None,)
    named = ",".join("0" if number.strip() == _ALL else number for number in text.split(","))
    return _numbers("--labels", named, "200,2000,all")


def _print_plan(design: Design, processes: int) -> None:
    from drkit.studies.costs import describe_sharing, estimate_study
    from drkit_cli.render import cost_document

    sharing, cost = describe_sharing(design), estimate_study(design, processes)
    document = {
        "study": design.folder,
        "cells": [dict(cell.levels) for cell in design.cells],
        "runs": [run.folder for run in design.runs],
        "seeds": list(design.seeds),
        "labels": list(design.labels),
        "stages": {"planned": sharing.planned, "different": sharing.different, "finished": sharing.finished},
        "shared": dict(sharing.shared),
        "notes": _notes(design),
        "cost": cost_document(cost),
    }
    print_result(document, lambda: _draw_plan(design, sharing, cost, processes))


def _notes(design: Design) -> list[str]:
    return list(dict.fromkeys(note for run in design.runs for note in run.notes))


def _draw_plan(design: Design, sharing: Sharing, cost: Cost | None, processes: int) -> None:
    from drkit_cli.render import console, table

    screen = console()
    for note in _notes(design):
        screen.print(f"note: {note}", markup=False, soft_wrap=True)
    rows = [(*cell.levels.values(), cell.name) for cell in design.cells]
    screen.print(table(f"{design.folder}: {len(design.cells)} cells", (*design.axes, "name"), rows))
    names = ["as the recipe says" if one is None else "all" if one == 0 else f"{one:,}" for one in design.labels]
    to_do = sharing.different - sharing.finished
    side = f", {processes} at a time" if processes > 1 else ""
    lines = [
        ("seeds", ", ".join(map(str, design.seeds))),
        ("labels", ", ".join(names)),
        ("runs", f"{len(design.runs)}, one for each cell, seed and number of labels{side}"),
        (
            "stages",
            f"{to_do:,} to make; the runs have {sharing.planned:,}, of which equal ones are made once",
        ),
        ("shared", ", ".join(_describe_shared(*item) for item in sharing.shared.items()) or "nothing"),
        ("in all", f"{cost} on this machine" if cost else "unknown: the size of the collection is"),
    ]
    for label, text in lines:
        screen.print(f"{label:<8} {text}", markup=False, soft_wrap=True)


def _describe_shared(stage: str, number: int) -> str:
    return stage if number == 1 else f"{stage} ({number})"


def _print(found: Study) -> None:
    from drkit.studies.page import describe_references, effect_cells, headline
    from drkit_cli.render import console, table

    screen = console()
    for line in headline(found.tables):
        screen.print(line, markup=False, soft_wrap=True)
    for one in found.tables:
        rows = [effect_cells(effect) for effect in one.effects]
        screen.print()
        screen.print(table(one.title, ("effect", one.measure, "95 % interval", "p (Holm)"), rows))
        means = [(*result.cell.levels.values(), f"{result.mean:.3f}") for result in one.results]
        screen.print()
        screen.print(table("", (*found.design.axes, one.measure), means))
        if one.references:
            screen.print(f"for comparison: {describe_references(one.references)}", markup=False, soft_wrap=True)
    if len(found.design.seeds) == 1:
        screen.print("\nthe intervals are over queries alone: --seeds 1,2,3 tells what holds for other seeds")
