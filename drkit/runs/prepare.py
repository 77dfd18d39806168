"""Everything that is checked before a run, so that it does not fail after an hour."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drkit.core import processes
from drkit.core.registry import Registry
from drkit.errors import DrkitError
from drkit.recipe.check import check
from drkit.recipe.schema import Recipe
from drkit.recipe.start import RECIPE
from drkit.runs.attribution import try_collection
from drkit.runs.plan import Plan, plan
from drkit.runs.survey import survey
from drkit.train.arguments import check_arguments


def prepare(
    recipe: Recipe, registry: Registry, folder: Path, *, reuse: Sequence[Path] = (), trial: bool | None = None
) -> Plan:
    """Check all that can be known before a run, and return its plan.

    trial: try every part on a toy batch; None: if a stage is to be made in `folder`. Raises DrkitError for whatever is
    wrong: the recipe, the collection, files, training arguments, missing packages, a broken part.
    """
    check(recipe, registry)
    try_collection(recipe, registry)
    made = plan(recipe, registry)
    for other in reuse:
        if not (other / RECIPE).is_file():
            raise DrkitError(f"--reuse {other}: not a run (missing {RECIPE}); give the folder of a run")
    unfinished = [finding.stage for finding in survey(made.stages, folder) if not finding.is_finished]
    for stage in unfinished:
        stage.check_extras()
    if unfinished and not processes.rank():
        check_arguments(recipe)
    if trial or (trial is None and unfinished):
        from drkit.runs.trial import try_parts  # loads torch and transformers

        try_parts(recipe, registry)
    return made
