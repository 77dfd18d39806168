"""Running a recipe from the command line: check, trial, plan, progress and results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drkit_cli.names import LocalPath
from drkit_cli.output import print_note, print_result, show_progress
from drkit_cli.terminal import echo

if TYPE_CHECKING:
    from drkit.core.registry import Registry
    from drkit.recipe.schema import Recipe
    from drkit.runs.plan import Plan


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every command with a run has: `--dry-run`, `--reuse`, `--redo` and `--trial`."""
    options = (
        click.option("--dry-run", is_flag=True, help="Print the plan and stop."),
        click.option(
            "--reuse",
            metavar="RUN",
            type=LocalPath(),
            multiple=True,
            help="Reuse identical stages of another run.",
        ),
        click.option(
            "--redo",
            is_flag=True,
            help="Reuse the folder of another recipe, and rebuild the stages that the change affects.",
        ),
        click.option(
            "--trial/--no-trial",
            default=None,
            help="Try every part on a toy batch first (default: yes for a run, no for --dry-run).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def run_recipe(
    recipe: Recipe,
    registry: Registry,
    *,
    run_dir: Path | None,
    dry_run: bool,
    redo: bool,
    reuse: Sequence[Path] = (),
    trial: bool | None = None,
) -> None:
    """Check the recipe, print its plan or run it, and print the results.

    trial: whether to try its parts on a toy batch first; None: before a run, but not for a dry run.
    """
    from attrs import evolve

    from drkit.core import processes
    from drkit.core.progress import Silent
    from drkit.core.threads import busy_note, configured_threads, free_cores
    from drkit.errors import DrkitError
    from drkit.recipe.check import check
    from drkit.runs.attribution import try_collection
    from drkit.runs.execute import RECIPE, execute
    from drkit.runs.plan import plan
    from drkit.train.arguments import check_arguments
    from drkit_cli.render import console, plan_document, plan_tree, results, results_document

    check(recipe, registry)
    try_collection(recipe, registry)
    made = plan(recipe, registry)
    if busy := busy_note(configured_threads(os.environ), free_cores()):
        made = evolve(made, notes=(*made.notes, busy))
    run = run_dir or Path("runs") / recipe.name
    not_runs = [other for other in reuse if not (other / RECIPE).is_file()]
    if not_runs:
        raise DrkitError(f"--reuse {not_runs[0]}: not a run (missing {RECIPE}); give the folder of a run")
    starts = _unfinished(made, run)
    if starts and not processes.rank():
        check_arguments(recipe)
    if trial or (trial is None and not dry_run and starts):
        from drkit.runs.trial import try_parts

        try_parts(recipe, registry)
    if dry_run and not processes.rank():
        print_result(plan_document(recipe, made, run), lambda: console().print(plan_tree(recipe, registry, made, run)))
    if dry_run:
        return
    if processes.rank():  # only the first process prints
        with name_failing_part(recipe, registry):
            execute(made.stages, run, recipe, registry=registry, progress=Silent())
        return
    for note in made.notes:
        print_note(note)
    try:
        with name_failing_part(recipe, registry), show_progress(len(made.stages)) as progress:
            done = execute(made.stages, run, recipe, registry=registry, progress=progress, redo=redo, reuse=reuse)
    except KeyboardInterrupt:
        echo(f"interrupted; finished stages and checkpoints are kept. Resume with: drkit run {run / RECIPE}", err=True)
        raise
    print_result(results_document(run, done), lambda: results(run, done))


@contextmanager
def name_failing_part(recipe: Recipe, registry: Registry) -> Iterator[None]:
    """Print the name, package and version of the part in which a block raises an exception, and re-raise it."""
    from drkit.errors import DrkitError
    from drkit.recipe.parts import all_parts
    from drkit.runs.attribution import describe_error, failing_part

    try:
        yield
    except DrkitError:
        raise
    except Exception as error:
        part = failing_part(error, all_parts(recipe, registry))
        if part is not None:
            echo(f"error in {part.full_title}: {describe_error(error)}", err=True)
        raise


def _unfinished(made: Plan, run: Path) -> bool:
    from drkit.runs.survey import survey

    return any(not finding.is_finished for finding in survey(made.stages, run))
