"""`drkit run`: run a recipe, or resume a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from drkit.core.files import MANIFEST
from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe.compose import quickened
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import read_recipe
from drkit_cli.names import LocalPath
from drkit_cli.options import run_options
from drkit_cli.output import output_options


@click.command(short_help="Run a recipe, or resume a run.")
@click.argument("recipe", type=LocalPath())
@click.option("--run-dir", type=LocalPath(), help="Run folder (default: the recipe's folder, or runs/NAME).")
@click.option(
    "--quick", is_flag=True, help="A smoke run of a recipe's file, every stage on little data: runs/NAME-quick."
)
@run_options
@output_options
def run(recipe: Path, run_dir: Path | None, quick: bool, **options: Any) -> None:
    r"""Run RECIPE, a TOML file or the folder of a run, which is resumed where it stopped.

    \b
    drkit run runs/R                          # resume an interrupted run
    drkit run recipe.toml --run-dir runs/B    # the same recipe in another folder
    drkit run recipe.toml --quick             # every stage on little data
    torchrun --nproc-per-node 4 -m drkit_cli.main run recipe.toml
    drkit run recipe.toml --engine ray:auto   # encode on a Ray cluster
    """
    from drkit_cli.running import run_recipe

    path = recipe / RECIPE if recipe.is_dir() else recipe
    if not path.exists():
        raise DrkitError(_missing(recipe))
    parts = installed()
    loaded = read_recipe(path, parts.registry)
    if quick:
        if recipe.is_dir():
            raise click.UsageError(f"--quick makes a smoke run of a recipe's file; {recipe} is a run, which it resumes")
        loaded = quickened(loaded, parts.registry)
    if run_dir is None and path.name == RECIPE and _is_run(path.parent):
        run_dir = path.parent
    run_recipe(loaded, parts.registry, run_dir=run_dir, **options)


def _missing(recipe: Path) -> str:
    """Return what is wrong with a folder that is not a run, or a file that does not exist, and what to write."""
    if recipe.is_dir():
        return f"{recipe} is not a run (missing {RECIPE}); give the folder of a run, or a recipe's file"
    name = recipe if recipe.suffix == ".toml" else RECIPE
    return f"no such file or folder: {recipe}; give a run, or write a recipe: `drkit compose -o {name} --dry-run`"


def _is_run(folder: Path) -> bool:
    """Return whether a folder is a run, also a copy without hidden files, and not any folder with a recipe."""
    return (folder / ".lock").exists() or any(folder.glob(f"*/{MANIFEST}"))
