"""Running a recipe from the command line: check, trial, plan, progress and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from drkit.core import processes
from drkit.core.engine import LOCAL, Engine, check_engine, open_engine
from drkit.core.progress import Silent
from drkit.core.protocols import Collection
from drkit.core.registry import Registry, installed
from drkit.errors import DrkitError, describe_exit
from drkit.recipe.schema import Recipe
from drkit.recipe.start import RECIPE
from drkit_cli.output import is_verbose, print_note, print_result, show_progress
from drkit_cli.terminal import echo

if TYPE_CHECKING:
    from drkit.runs.costs import Rates
    from drkit.runs.plan import Plan
    from drkit.runs.work import Sizes


def run_recipe(
    recipe: Recipe,
    registry: Registry,
    *,
    run_dir: Path | None,
    dry_run: bool,
    redo: bool,
    reuse: Sequence[Path] = (),
    keep_stale: Sequence[str] = (),
    trial: bool | None = None,
    notes: Sequence[str] = (),
    engine: str = LOCAL,
    rates: Rates | None = None,
    collection: Collection | None = None,
) -> None:
    """Check the recipe, print its plan or run it, and print the results; of several processes, the first one prints.

    keep_stale: see `drkit.runs.stale`. trial: whether to try its parts on a toy batch first; None: before a run, but
    not for a dry run. notes: what to say with those of the plan. engine: see `drkit.core.engine.open_engine`. rates:
    of this machine, for the cost of a plan; None: those of earlier runs. collection: that of the recipe, if it was
    built.
    """
    from drkit.runs.costs import has_gpu, machine_memory, memory_notes
    from drkit.runs.prepare import prepare
    from drkit.runs.stale import kept_stale

    check_engine(engine)
    run = run_dir or Path("runs") / recipe.name
    tried = False if dry_run and trial is None else trial
    made = prepare(recipe, registry, run, reuse=reuse, trial=tried, collection=collection)
    kept = kept_stale(made.stages, run, keep_stale)
    of_memory = () if has_gpu() else memory_notes(recipe, made.stages, machine_memory())
    made = evolve(made, notes=(*notes, *made.notes, *of_memory, *_notes_of_plugins(recipe, registry)))
    if trial:
        passed = "trial: every part of the recipe passes on a toy batch"
        made = evolve(made, notes=(*made.notes, passed))
    if not dry_run:
        with open_engine(engine) as opened:
            _execute(made, run, recipe, registry, redo=redo, reuse=reuse, keep_stale=keep_stale, engine=opened)
    elif not processes.rank():
        _print_plan(evolve(made, stages=kept), run, recipe, registry, rates, timed=bool(trial))


def _notes_of_plugins(recipe: Recipe, registry: Registry) -> list[str]:
    """Return what is worth knowing about the plugins whose parts a recipe uses, such as a second installed version."""
    from drkit.recipe.parts import all_parts

    providers = {part.spec.provider for part in all_parts(recipe, registry)}
    used = [report for report in installed().plugins if report.provider in providers]
    return [f"the plugin {report.name!r} {note}" for report in used for note in report.notes]


def _print_plan(made: Plan, run: Path, recipe: Recipe, registry: Registry, rates: Rates | None, *, timed: bool) -> None:
    """Print a plan, what is downloaded, and its cost, for a collection whose size is known.

    timed: take steps of the encoder for trainings that no earlier run has shown.
    """
    from drkit.runs.costs import collection_size, earlier_rates, estimate_cost, planned_sizes, stage_work
    from drkit.runs.downloads import downloads
    from drkit_cli.render import PlanFacts, console, plan_document, plan_summary, stage_lines

    size = collection_size(recipe, made.collection, run)
    sizes = planned_sizes(recipe, size) if size else None
    rates = rates or earlier_rates(run)
    if timed and sizes:
        rates = rates.or_else(_timed_steps(recipe, sizes))
    facts = PlanFacts(
        cost=estimate_cost(made.stages, sizes, rates) if sizes else None,
        work=stage_work(made.stages, sizes) if sizes else {},
        downloads=tuple(downloads(recipe)),
    )

    def draw() -> None:
        screen = console()
        screen.print(plan_summary(recipe, registry, made, run, facts))
        for line in stage_lines(made, run, facts.work) if is_verbose() else ():
            screen.print(line)

    print_result(plan_document(recipe, made, run, facts), draw)


def _timed_steps(recipe: Recipe, sizes: Sizes) -> Rates:
    """Return the rates of three steps of the recipe's encoder, in batches of its first training; none of a hub's."""
    from drkit.runs.costs import Rates
    from drkit.runs.work import encoder_size, examples_at_once
    from drkit.train.speed import measure_steps  # loads torch and transformers

    training, model = recipe.pretrain or recipe.finetune, encoder_size(recipe.encoder)
    if training is None or model is None:
        return Rates()
    length = max(round(sizes.kept_length(recipe.encoder.passage_length)), 2)
    speed = measure_steps(recipe.encoder, texts=examples_at_once(training), length=length)
    return Rates().calibrated(model, read=speed.read, learned=speed.learned, length=length, learned_length=length)


def _execute(
    made: Plan,
    run: Path,
    recipe: Recipe,
    registry: Registry,
    *,
    redo: bool,
    reuse: Sequence[Path],
    keep_stale: Sequence[str],
    engine: Engine,
) -> None:
    """Execute a plan, with its notes, progress and results."""
    from drkit.commands.prune import disk_use
    from drkit.runs.execute import execute
    from drkit_cli.render import print_results, results_document

    if processes.rank():
        with name_failing_part(recipe, registry):
            execute(made.stages, run, recipe, registry=registry, progress=Silent())
        return
    for note in made.notes:
        print_note(note)
    try:
        with name_failing_part(recipe, registry), show_progress(len(made.stages)) as progress:
            done = execute(
                made.stages,
                run,
                recipe,
                registry=registry,
                progress=progress,
                redo=redo,
                reuse=reuse,
                keep_stale=keep_stale,
                engine=engine,
                collection=made.collection,
            )
    except KeyboardInterrupt:
        echo(f"interrupted; finished stages and checkpoints are kept. Resume with: drkit run {run / RECIPE}", err=True)
        raise
    space = disk_use(run, made.stages, done)
    print_result(results_document(run, done, space), lambda: print_results(run, done, space))


@contextmanager
def name_failing_part(recipe: Recipe, registry: Registry) -> Iterator[None]:
    """Print the name, package and version of the part in which a block raises an exception, and re-raise it.

    Raises DrkitError instead if the part ends the program.
    """
    from drkit.recipe.parts import all_parts
    from drkit.runs.attribution import describe_error, failing_part

    try:
        yield
    except DrkitError:
        raise
    except (Exception, SystemExit) as error:
        part = failing_part(error, all_parts(recipe, registry))
        if isinstance(error, SystemExit):
            raise DrkitError(f"{part.full_title if part else 'a library'}: {describe_exit(error)}") from error
        if part is not None:
            echo(f"error in {part.full_title}: {describe_error(error)}", err=True)
        raise
