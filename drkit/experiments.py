"""Experiments from Python: compose a recipe, and run it.

import drkit

recipe = drkit.compose(masker="pmi", decoder="enhanced", collection="beir:FOLDER", **{"pretrain.max_steps": 500})
record = drkit.run(recipe)  # what `drkit run` does: resumes, and keeps what is finished
record.table()

`drkit.study` compares compositions over seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from drkit.commands.records import RunRecord, open_run
from drkit.core.engine import LOCAL, open_engine
from drkit.core.progress import Progress, Silent
from drkit.core.registry import installed
from drkit.recipe.check import check
from drkit.recipe.compose import CHOICES, ComposeRequest, ratio_notes
from drkit.recipe.compose import compose as compose_recipe
from drkit.recipe.lengths import fit_lengths, follows_texts
from drkit.recipe.schema import Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import read_recipe, toml_value
from drkit.runs.attribution import build_collection
from drkit.runs.execute import execute
from drkit.runs.prepare import prepare

_LOGGER = logging.getLogger(__name__)


def compose(*, settings: str | Iterable[str] = (), **choices: Any) -> Recipe:
    """Return the recipe that `drkit compose` makes of the same choices, checked.

    choices: the fields of `drkit.recipe.ComposeRequest` (masker, decoder, paper, pipeline, collection, ..), and
    settings by their dotted paths (`**{"pretrain.max_steps": 500}`); None as a setting leaves an optional table out.
    settings: further ones as the command takes them, `["pretrain.max_steps=500"]`, which come last.

    Raises DrkitError as the command does.

    >>> recipe = compose(paper="retromae", seed=1, **{"pretrain.max_steps": 500, "finetune": None})
    >>> recipe.name, recipe.seed, recipe.pretrain.max_steps, recipe.finetune
    ('pydocs-retromae', 1, 500, None)
    """
    parts = installed()
    written = (settings,) if isinstance(settings, str) else tuple(settings)
    assigned = [f"{path}={toml_value(value)}" for path, value in choices.items() if path not in CHOICES]
    chosen = {name: value for name, value in choices.items() if name in CHOICES}
    request, registry = ComposeRequest(settings=(*assigned, *written), **chosen), parts.registry
    recipe = compose_recipe(request, parts)
    check(recipe, registry)
    if not follows_texts(recipe, request, registry):
        return recipe
    fitted, notes = fit_lengths(recipe, build_collection(recipe, registry), request, registry)
    for note in (*notes, *ratio_notes(request, fitted, registry)):
        _LOGGER.info("%s", note)
    return fitted


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
            collection=made.collection,
        )
    return open_run(run_folder, parts)
