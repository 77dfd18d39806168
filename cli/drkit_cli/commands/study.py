"""`drkit study`: a factorial design over choices, with effects and their intervals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drkit.recipe.compose import CHOICES
from drkit.recipe.toml import parse_value
from drkit_cli.names import InstalledName, LocalPath, PathOrId, count
from drkit_cli.options import engine_option, open_collection_option, settings_option
from drkit_cli.output import output_options, print_next, print_result, show_progress

if TYPE_CHECKING:
    from drkit.runs.costs import Cost
    from drkit.studies.costs import Sharing
    from drkit.studies.design import Design
    from drkit.studies.results import Study

# A comma outside brackets, which belong to a value.
_COMMA = re.compile(r",(?![^\[{]*[\]}])")
_NONE, _ALL = "none", "all"


@click.command(short_help="Compare combinations of choices: what each part adds.")
@click.argument("axes", nargs=-1, required=True, metavar="CHOICE=VALUE,VALUE..")
@click.option("--seeds", default="42", show_default=True, metavar="N,N..", help="Every combination runs with each.")
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
    """
    from drkit.studies.design import design_study
    from drkit.studies.results import make_study, read_study

    chosen: dict[str, Any] = {key: value for key, value in choices.items() if value is not None}
    for setting in settings:
        path, _, value = setting.partition("=")
        found = _value(path.strip(), value.strip())
        chosen[path.strip()] = tuple(found) if isinstance(found, list) else found
    design = design_study(
        folder=runs / name,
        seeds=_numbers("--seeds", seeds, "1,2,3"),
        labels=_labels(labels),
        **chosen,
        **_axes(axes, chosen),
    )
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
        "cost": {"seconds": cost.seconds, "memory": cost.memory, "disk": cost.disk} if cost else None,
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
        ("in all", f"{cost} on this machine" if cost else "not estimated: a GPU, or a collection of unknown size"),
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
