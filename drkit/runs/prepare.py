"""Everything that is checked before a run, so that it does not fail after an hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import asdict

from drkit.core import processes
from drkit.core.plugin_code import refuse_edited_code
from drkit.core.protocols import Collection
from drkit.core.registry import Registry
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.schema import Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.trainer_arguments import OPTIMIZER
from drkit.recipe.training import Training
from drkit.runs.attribution import build_collection
from drkit.runs.manifest import recorded_processes
from drkit.runs.plan import Plan, plan
from drkit.runs.survey import survey

# Variables of torchrun, which a process that only tries arguments must not have.
_DISTRIBUTED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def prepare(
    recipe: Recipe,
    registry: Registry,
    folder: Path,
    *,
    reuse: Sequence[Path] = (),
    trial: bool | None = None,
    collection: Collection | None = None,
) -> Plan:
    """Check all that can be known before a run, and return its plan.

    trial: try every part on a toy batch; None: if a stage is to be made in `folder`. collection: that of the recipe, if
    it was built already. Raises DrkitError for whatever is wrong: the recipe, the collection, files, training
    arguments, missing packages, a broken part, code of a plugin that was edited since this process loaded it.
    """
    check(recipe, registry)
    refuse_edited_code()
    collection = collection or build_collection(recipe, registry)
    with processes.batches_of(recorded_processes(folder) or processes.process_count()):
        made = plan(recipe, registry, collection)
    for other in reuse:
        if not (other / RECIPE).is_file():
            raise DrkitError(f"--reuse {other}: not a run (missing {RECIPE}); give the folder of a run")
    unfinished = [finding.stage for finding in survey(made.stages, folder) if not finding.is_finished]
    for stage in unfinished:
        stage.check_extras()
    if unfinished and not processes.rank():
        try_arguments(recipe)
    if trial or (trial is None and unfinished):
        from drkit.runs.trial import try_parts  # loads torch and transformers

        try_parts(recipe, registry, collection)
    return made


def try_arguments(recipe: Recipe) -> None:
    """Raise ProblemsError if a training of the recipe cannot start: what transformers or its optimizer refuses.

    Takes some seconds, in a process of its own, unless all trainings have known schedules and arguments.
    """
    tables = {"pretrain": recipe.pretrain, "finetune": recipe.finetune, "reranker": recipe.reranker}
    tried = {name: asdict(table.training_only()) for name, table in tables.items() if table and not _is_known(table)}
    if not tried:
        return
    alone = {name: value for name, value in os.environ.items() if name not in _DISTRIBUTED}
    command = [sys.executable, "-m", "drkit.train.arguments"]
    done = subprocess.run(command, input=json.dumps(tried, default=str), capture_output=True, text=True, env=alone)
    if done.returncode:
        last = next(reversed(done.stderr.strip().splitlines()), f"exit code {done.returncode}")
        raise DrkitError(f"cannot try the arguments of {' and '.join(tried)}: {last}")
    if found := json.loads(done.stdout.splitlines()[-1]):
        raise ProblemsError(f"recipe {recipe.name!r} cannot be trained", found)


def _is_known(training: Training) -> bool:
    """Return whether transformers is known to take the settings: the schema has the bounds of all others."""
    return (
        training.lr_scheduler_type in ("linear", "cosine", "constant", "constant_with_warmup")
        and not training.bf16
        and training.arguments.keys() <= OPTIMIZER.keys()
    )
