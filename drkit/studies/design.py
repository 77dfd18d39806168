"""The design of a study: its axes, a cell for every combination of their values, and the runs that it needs.

Whatever is wrong is reported before the first run, all at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from attrs import evolve, fields, frozen

from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.errors import DrkitError, ProblemsError, UnknownNameError
from drkit.experiments import compose
from drkit.recipe.compose import CHOICES
from drkit.recipe.schema import JUDGED, NONE, Recipe
from drkit.runs.plan import plan
from drkit.runs.stage import Stage
from drkit.runs.stages.evaluation import EVALUATION
from drkit.runs.stages.finetune import FINETUNE

# `--labels all`: every training query.
ALL = 0
# Why a choice or setting cannot vary in a study, or be set for it.
_FIXED = {
    "seed": "the seeds are in `seeds` (--seeds 1,2,3)",
    "name": "the name of a study is that of its folder (--name)",
    "schema": "it is the version of the file format",
}
# Why a choice cannot be an axis, by the beginning of its path.
_SAME_QUERIES = {
    "collection": "every cell must be evaluated on the same queries; make a study for each collection",
    "evaluation.split": "every cell must be evaluated on the same queries; make a study for each split",
    "evaluation.exclude_self": "every cell must be measured in the same way",
    "evaluation.measures": "every cell must be measured in the same way; the first measure is the one that is compared",
}
# What a study does not repeat in every cell, unless it is asked to: systems that no axis changes, and choosing by the
# dev queries.
_LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    "finetune": {"baselines": ()},
    "evaluation": {"start": False, "hybrid": False, "export": "last"},
}
_NOT_IN_NAMES = re.compile(r"[^\w.]+")


@frozen
class Cell:
    """A combination of the axes' values, by axis as text; choices: what it chooses, as `drkit.compose` takes it."""

    levels: Mapping[str, str]
    choices: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The values, as the names of folders have them."""
        return "-".join(_NOT_IN_NAMES.sub("-", value).strip("-") for value in self.levels.values())


@frozen
class PlannedRun:
    """A run of a cell with a seed and a number of labels (None: the recipe's own, `ALL`: every one)."""

    cell: Cell
    seed: int
    labels: int | None
    recipe: Recipe
    folder: Path
    stages: tuple[Stage[Any], ...]
    notes: tuple[str, ...] = ()


@frozen
class Design:
    """A factorial design: the levels of each axis, of which the first is the baseline, and a run for each cell.

    labels: numbers of training queries that each cell is fine-tuned with; one None: as the recipe says.
    """

    folder: Path
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    labels: tuple[int | None, ...]
    runs: tuple[PlannedRun, ...]

    def runs_of(self, cell: Cell, labels: int | None) -> list[PlannedRun]:
        """Return the runs of a cell, one for each seed."""
        return [run for run in self.runs if run.cell == cell and run.labels == labels]


def design_study(
    *,
    folder: str | Path = "runs/study",
    seeds: Sequence[int] = (42,),
    labels: Sequence[int | None] = (None,),
    **choices: Any,
) -> Design:
    """Return the design of a study, checked; makes nothing.

    folder: of the study, with a run for each cell, seed and number of labels. choices: as for `drkit.compose`; a list
    is an axis, so a value that is a list itself stands in another list. labels: see `Design`.

    Raises ProblemsError with all that is wrong: an unknown axis or value, one given twice or that changes what is
    measured, parts that do not fit together, or nothing to evaluate.
    """
    folder, axes = Path(folder), {key: value for key, value in choices.items() if isinstance(value, list)}
    problems = [*problems_of_axes(axes, choices), *_problems_of_numbers(seeds, labels)]
    if problems:
        raise ProblemsError("the study cannot be made", problems)
    names = list(axes)
    cells = tuple(make_cell(names, values) for values in product(*axes.values()))
    runs, found = [], dict[str, list[str]]()
    for number, seed, cell in product(labels, seeds, cells):
        name = _run_name(cell, seed, number, several=len(labels) > 1)
        try:
            recipe = study_recipe({**choices, **cell.choices}, seed, number, name)
            runs.append(plan_run(cell, seed, number, folder / name, recipe))
        except DrkitError as error:
            for problem in reasons(error):
                found.setdefault(problem, []).append(cell.name)
    if found:
        raise ProblemsError("the study cannot be made", list(_by_cell(found, len(cells))))
    if len({run.folder for run in runs}) < len(runs):
        raise ProblemsError("the study cannot be made", ["two cells have the same name; give each value once"])
    levels = {axis: tuple(map(show_level, values)) for axis, values in axes.items()}
    return Design(folder, levels, cells, tuple(seeds), tuple(labels), tuple(runs))


def make_cell(axes: Sequence[str], values: Sequence[Any]) -> Cell:
    """Return the cell of these values, one for each axis."""
    chosen = dict(zip(axes, values, strict=True))
    return Cell(
        {axis: show_level(value) for axis, value in chosen.items()},
        {axis: None if axis in ADDED and value == NONE else value for axis, value in chosen.items()},
    )


def problems_of_axes(axes: Mapping[str, list[Any]], choices: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with axes, and with the choices of all cells; see `design_study`."""
    if not axes:
        yield "it has no axis: give a choice several values, as in masker=uniform,pmi (masker=['uniform', 'pmi'])"
    known = sorted(CHOICES - {"name"})
    for path, reason in _FIXED.items():
        if path in choices:
            yield f"{path!r} cannot be chosen: {reason}"
    for axis, values in axes.items():
        if len(values) < 2:
            yield f"axis {axis!r} needs at least 2 values, got {len(values)}; choose a fixed one by an option or --set"
        if len({*map(show_level, values)}) < len(values):
            yield f"axis {axis!r} has a value twice: {', '.join(map(show_level, values))}"
        fixed = [path for path in _SAME_QUERIES if axis == path or axis.startswith(f"{path}.")]
        if fixed:
            yield f"{axis!r} cannot be an axis: {_SAME_QUERIES[fixed[0]]}"
    tables = {a.name for a in fields(Recipe)}
    for path in choices:
        if path not in CHOICES and path.partition(".")[0] not in tables:
            advice = "a setting is given by its path, as in pretrain.max_steps (drkit show prints all)"
            yield str(UnknownNameError("axis or choice", path, known, advice=advice))
    yield from _problems_of_parts(axes)


# The choices that add to a recipe: `none` adds nothing.
ADDED = ("pretrain_loss", "miners")
# The kind of part that a choice names.
_KINDS = {
    "masker": Kind.MASKER,
    "encoder_masker": Kind.MASKER,
    "context": Kind.CONTEXT,
    "decoder": Kind.DECODER,
    "loss": Kind.LOSS,
    "miners": Kind.MINER,
    "batches": Kind.BATCHES,
}


def _problems_of_parts(axes: Mapping[str, list[Any]]) -> Iterator[str]:
    """Yield each value that names no part, with the names there are."""
    registry = installed().registry
    for axis, kind in _KINDS.items():
        for value in axes.get(axis, ()):
            for name in value if isinstance(value, (list, tuple)) else [value]:
                if not (axis in ("decoder", *ADDED) and name == NONE):
                    try:
                        registry.split(kind, str(name))
                    except DrkitError as error:
                        yield f"{error} @ {axis}"


def _problems_of_numbers(seeds: Sequence[int], labels: Sequence[int | None]) -> Iterator[str]:
    if not seeds or len({*seeds}) < len(seeds):
        yield f"`seeds` must be at least one number, each once, got {list(seeds)}"
    if not labels or len({*labels}) < len(labels) or any(number is not None and number < 0 for number in labels):
        yield f"`labels` must be numbers of training queries, each once, 0 or `all` for every one; got {list(labels)}"


def study_recipe(choices: Mapping[str, Any], seed: int, labels: int | None, name: str) -> Recipe:
    """Return the recipe of a cell with a seed and a number of labels. Raises DrkitError if it cannot be composed."""
    return _for_study(compose(**choices, seed=seed, name=name), labels, choices)


def plan_run(cell: Cell, seed: int, labels: int | None, folder: Path, recipe: Recipe) -> PlannedRun:
    """Return a run with its plan. Raises DrkitError if it cannot work."""
    made = plan(recipe, installed().registry)
    if not any(stage.spec is EVALUATION for stage in made.stages):
        raise DrkitError(
            f"the collection has no judged queries in the split {recipe.evaluation.split!r}, so that nothing is "
            f"compared; choose another collection or evaluation.split"
        )
    if labels is not None and not any(stage.spec is FINETUNE for stage in made.stages):
        raise DrkitError(
            "--labels needs training queries, and the collection has none: leave --labels out, or train on a share of "
            "the judged queries, as with --set collection.train_share=0.5"
        )
    return PlannedRun(cell, seed, labels, recipe, folder, made.stages, made.notes)


def _for_study(recipe: Recipe, labels: int | None, choices: Mapping[str, Any]) -> Recipe:
    """Return a recipe that is also evaluated before labels, with so many of them, and without what is left out.

    Raises DrkitError for a number of labels where no round learns from any.
    """
    for table, settings in _LEFT_OUT.items():
        own = getattr(recipe, table)
        free = {name: value for name, value in settings.items() if f"{table}.{name}" not in choices}
        recipe = evolve(recipe, **{table: evolve(own, **free)}) if own else recipe
    if recipe.pretrain:
        recipe = evolve(recipe, evaluation=evolve(recipe.evaluation, pretrained=True))
    if labels is None:
        return recipe
    rounds = recipe.finetune.rounds if recipe.finetune else ()
    if recipe.finetune is None or not any(one.pairs == JUDGED for one in rounds):
        raise DrkitError("--labels needs fine-tuning on judged queries, and the recipe has none; leave --labels out")
    rounds = tuple(evolve(one, queries=labels) if one.pairs == JUDGED else one for one in rounds)
    return evolve(recipe, finetune=evolve(recipe.finetune, rounds=rounds))


def reasons(error: DrkitError) -> tuple[str, ...]:
    """Return the problems of an error, each on its own."""
    return error.problems if isinstance(error, ProblemsError) else (str(error),)


def _by_cell(found: Mapping[str, Sequence[str]], cells: int) -> Iterator[str]:
    """Yield each problem, with the cells that have it unless all have."""
    for problem, names in found.items():
        which = dict.fromkeys(names)
        yield problem if len(which) == cells else f"{', '.join(which)}: {problem}"


def _run_name(cell: Cell, seed: int, labels: int | None, *, several: bool) -> str:
    number = "" if labels is None or not several else f"-{'all' if labels == ALL else labels}-labels"
    return f"{cell.name}{number}-{seed}"


def show_level(value: Any) -> str:
    """Return the value of an axis as text; None, which leaves a table out, as `none`."""
    if value is None:
        return NONE
    return str(value).lower() if isinstance(value, bool) else str(value)
