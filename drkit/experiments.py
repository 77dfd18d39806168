"""Experiments from Python: compose a recipe, run it, and compare compositions over seeds.

import drkit

recipe = drkit.compose(masker="pmi", decoder="enhanced", collection="beir:FOLDER", **{"pretrain.max_steps": 500})
record = drkit.run(recipe)  # what `drkit run` does: resumes, and keeps what is finished
record.table()

sweep = drkit.sweep(masker=["uniform", "pmi"], collection="beir:FOLDER", seeds=[1, 2, 3])
sweep.table()
"""

from __future__ import annotations

import logging
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

from attrs import fields, frozen

from drkit.charts import HeatMap, draw_heat_map
from drkit.commands.records import RunRecord, open_run
from drkit.core.engine import LOCAL, open_engine
from drkit.core.progress import Progress, Silent
from drkit.core.registry import installed
from drkit.errors import DrkitError, UnknownNameError
from drkit.evaluate.measures import Scores, average
from drkit.evaluate.significance import holm, paired_t_test
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest
from drkit.recipe.compose import compose as compose_recipe
from drkit.recipe.lengths import fit_lengths
from drkit.recipe.schema import Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import read_recipe, toml_value
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.runs.prepare import prepare
from drkit.runs.stages.evaluation import EVALUATION

_LOGGER = logging.getLogger(__name__)
_CHOICES = frozenset(field.name for field in fields(ComposeRequest)) - {"settings"}
_NOT_IN_NAMES = re.compile(r"[^\w.]+")


def compose(**choices: Any) -> Recipe:
    """Return the recipe that `drkit compose` makes of the same choices, checked.

    choices: the fields of `drkit.recipe.ComposeRequest` (masker, decoder, paper, pipeline, collection, ..), and
    settings by their dotted paths (`**{"pretrain.max_steps": 500}`); None as a setting leaves an optional table out.

    Raises DrkitError as the command does.

    >>> recipe = compose(paper="retromae", seed=1, **{"pretrain.max_steps": 500, "finetune": None})
    >>> recipe.name, recipe.seed, recipe.pretrain.max_steps, recipe.finetune
    ('pydocs-retromae', 1, 500, None)
    """
    parts = installed()
    settings = tuple(f"{path}={toml_value(value)}" for path, value in choices.items() if path not in _CHOICES)
    chosen = {name: value for name, value in choices.items() if name in _CHOICES}
    request, notes = fit_lengths(ComposeRequest(settings=settings, **chosen), parts)
    for note in notes:
        _LOGGER.info("%s", note)
    recipe = compose_recipe(request, parts)
    check(recipe, parts.registry)
    return recipe


def run(
    recipe: Recipe | str | Path,
    folder: str | Path | None = None,
    *,
    redo: bool = False,
    reuse: Sequence[str | Path] = (),
    keep_stale: Sequence[str] = (),
    trial: bool | None = None,
    engine: str = LOCAL,
    progress: Progress | None = None,
) -> RunRecord:
    """Run a recipe, or resume it, as `drkit run` does; returns the finished run.

    recipe: a recipe, its TOML file, or the folder of a run. folder: of the run; None: that of the given run, or
    `runs/NAME`. redo: repeat stages whose settings have changed. reuse: runs whose equal stages are shared. keep_stale:
    stages that are kept although a plugin's code or a library changed. trial: try the parts on a toy batch first; None:
    if a stage is to be made. engine: see `drkit.core.engine.open_engine`.

    Raises DrkitError as the command does; finished stages and checkpoints are kept.
    """
    parts = installed()
    if not isinstance(recipe, Recipe):
        path = Path(recipe)
        folder = path if folder is None and path.is_dir() else folder
        recipe = read_recipe(path / RECIPE if path.is_dir() else path, parts.registry)
    run_folder = Path("runs") / recipe.name if folder is None else Path(folder)
    shared = tuple(map(Path, reuse))
    made = prepare(recipe, parts.registry, run_folder, reuse=shared, trial=trial)
    with open_engine(engine) as opened:
        execute(
            made.stages,
            run_folder,
            recipe,
            registry=parts.registry,
            progress=progress or Silent(),
            redo=redo,
            reuse=shared,
            keep_stale=keep_stale,
            engine=opened,
        )
    return open_run(run_folder, parts)


@frozen
class Cell:
    """One composition of a sweep: its values on the axes, and a finished run for each seed."""

    choices: Mapping[str, Any]
    runs: tuple[RunRecord, ...]

    @property
    def system(self) -> str:
        """The system that is compared with those of other cells: the system of each run's verdict."""
        return self.runs[0].compared

    @property
    def scores(self) -> Scores:
        """The values of each query, averaged over the seeds. Raises DrkitError if the runs were not evaluated alike."""
        return average([run.scores[self.system] for run in self.runs])


@frozen
class Sweep:
    """The cells of a sweep, the first of which is the baseline."""

    cells: tuple[Cell, ...]

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each cell and measure; `pandas.DataFrame(rows)` takes them.

        A row has the values on the axes, `system`, `measure`, `mean`, `deviation` (over seeds; NaN for a single one),
        and, except for the baseline, `p` of a paired two-tailed t-test against it over queries, averaged over seeds,
        and `corrected`, after Holm's correction over all tests of the table.

        Raises DrkitError if the runs were not evaluated on the same queries with the same measures.
        """
        rows = [row for cell in self.cells for row in self._rows(cell)]
        tested = [row for row in rows if "p" in row]
        for row, corrected in zip(tested, holm([row["p"] for row in tested]), strict=True):
            row["corrected"] = corrected
        return rows

    def draw(self, path: str | Path, measure: str | None = None) -> Path:
        """Draw the means of a measure (None: the first) as a heat map, a PNG file, with the first axis in its rows.

        The columns are the values of the other axes, or the seeds if there is only one axis.

        Raises DrkitError for a measure that the runs do not have.
        """
        measure = measure or self.cells[0].scores.measures[0]
        if measure not in self.cells[0].scores.measures:
            raise UnknownNameError("measure", measure, self.cells[0].scores.measures)
        first, *others = self.cells[0].choices
        means: dict[str, dict[str, float]] = {}
        for cell in self.cells:
            row = means.setdefault(str(cell.choices[first]), {})
            if others:
                row[", ".join(str(cell.choices[axis]) for axis in others)] = cell.scores.mean(measure)
            else:
                row.update({str(r.recipe.seed): r.scores[cell.system].mean(measure) for r in cell.runs})
        columns = [*next(iter(means.values()))]
        values = [[row[column] for column in columns] for row in means.values()]
        return draw_heat_map(
            HeatMap(measure, [*means], columns, values, ", ".join(others) or "seed", first), Path(path)
        )

    def _rows(self, cell: Cell) -> Iterator[dict[str, Any]]:
        baseline = self.cells[0]
        for measure in baseline.scores.measures:
            means = [run.scores[cell.system].mean(measure) for run in cell.runs]
            found = {
                **cell.choices,
                "system": cell.system,
                "measure": measure,
                "mean": statistics.fmean(means),
                "deviation": statistics.stdev(means) if len(means) > 1 else math.nan,
            }
            if cell is not baseline:
                test = paired_t_test(cell.scores.per_query[measure], baseline.scores.per_query[measure])
                found["p"] = test.p
            yield found


def sweep(
    *,
    seeds: Sequence[int] = (42,),
    folder: str | Path = "runs",
    name: str = "sweep",
    progress: Callable[[int], AbstractContextManager[Progress]] | None = None,
    **choices: Any,
) -> Sweep:
    """Run every combination of some choices for every seed, and return them for comparison.

    choices: as for `compose`; a list is an axis, so a value that is a list itself stands in another list. folder: of
    the runs, which are named NAME-VALUES-SEED. Equal stages are shared, finished runs are kept, and every recipe is
    checked before the first run. progress: opens the progress of a run, given its number of stages.

    Raises DrkitError as `compose` and `run` do, if no choice is a list, an axis is empty, a value or seed is given
    twice, or a run would evaluate nothing.
    """
    axes = {key: value for key, value in choices.items() if isinstance(value, list)}
    if not axes or not all(axes.values()) or not seeds:
        raise DrkitError("a sweep needs a choice with a list of values, as in masker=['uniform', 'pmi'], and a seed")
    if "seed" in choices:
        raise DrkitError("a sweep has its seeds in `seeds` (--seeds 1,2,3), not in the choice or setting 'seed'")
    combinations = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    recipes = {
        (number, seed): compose(**{**choices, **chosen}, seed=seed, name=_run_name(name, chosen, seed))
        for number, chosen in enumerate(combinations)
        for seed in seeds
    }
    if len({recipe.name for recipe in recipes.values()}) < len(combinations) * len(seeds):
        raise DrkitError("two runs of the sweep have the same name: give each value and each seed once")
    plans = {key: plan(recipe, installed().registry).stages for key, recipe in recipes.items()}
    for key, stages in plans.items():
        if not any(stage.spec is EVALUATION for stage in stages):
            raise DrkitError(
                f"a sweep cannot compare {recipes[key].name}: its collection has no judged queries in the split "
                f"{recipes[key].evaluation.split!r}; choose another collection or split"
            )
    done: dict[tuple[int, int], RunRecord] = {}
    for key, recipe in recipes.items():
        earlier = [record.folder for record in done.values()]
        with progress(len(plans[key])) if progress else nullcontext(Silent()) as shown:
            shown.note(f"{recipe.name}: run {len(done) + 1} of {len(recipes)}")
            done[key] = run(recipe, Path(folder) / recipe.name, reuse=earlier, progress=shown)
    return Sweep(
        tuple(Cell(chosen, tuple(done[number, seed] for seed in seeds)) for number, chosen in enumerate(combinations))
    )


def _run_name(name: str, chosen: Mapping[str, Any], seed: int) -> str:
    values = [_NOT_IN_NAMES.sub("-", str(value)).strip("-") for value in chosen.values()]
    return "-".join([name, *values, str(seed)])
