"""Carrying out a recipe from the command line: the plan, the bars, the table, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from drkit.core.recipe import Recipe
    from drkit.core.registry import Registry


def carry_out(
    recipe: Recipe,
    registry: Registry,
    *,
    run_dir: Path | None,
    dry_run: bool,
    redo: bool,
    reuse: Sequence[Path] = (),
) -> None:
    """Check the recipe, print its plan or run it, and print the results."""
    from drkit.core.compose import check
    from drkit.errors import DrkitError
    from drkit.runs import processes
    from drkit.runs.execute import RECIPE, execute
    from drkit.runs.plan import plan
    from drkit.runs.progress import Silent
    from drkit_cli.progress import RichProgress
    from drkit_cli.render import console, plan_tree, results

    check(recipe, registry)
    made = plan(recipe, registry)
    run = run_dir or Path("runs") / recipe.name
    strangers = [other for other in reuse if not (other / RECIPE).is_file()]
    if strangers:
        raise DrkitError(f"--reuse {strangers[0]}: there is no run; give the folder of one, with its {RECIPE}")
    if dry_run and not processes.rank():
        console().print(plan_tree(recipe, registry, made, run))
    if dry_run:
        return
    if processes.rank():  # the first process speaks for all
        execute(made.stages, run, recipe, registry=registry, progress=Silent())
        return
    for note in made.notes:
        click.echo(f"note: {note}", err=True)
    try:
        with RichProgress(len(made.stages)) as progress:
            done = execute(made.stages, run, recipe, registry=registry, progress=progress, redo=redo, reuse=reuse)
    except KeyboardInterrupt:
        click.echo(f"interrupted; finished stages are kept. Go on with: drkit run {run / RECIPE}", err=True)
        raise
    results(run, done)
