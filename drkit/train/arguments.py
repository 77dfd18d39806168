"""Try the arguments of a recipe's trainings before its run starts, as transformers will take them.

In a process of its own: making `TrainingArguments` changes settings of torch and accelerate for the whole process, and
a dry run imports no torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attrs import asdict

from drkit.core.files import SCRATCH
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.schema import OPTIMIZER, Recipe, Training

_STEPS = 10
_DISTRIBUTED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_arguments(recipe: Recipe) -> None:
    """Raise ProblemsError if a training of the recipe cannot start: what transformers or its optimizer refuses.

    Takes some seconds, unless all trainings have known schedules and arguments.
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


def _try(settings: dict[str, Any]) -> None:
    """Make the arguments, optimizer and scheduler of a training, and compile a layer. Raises what they raise."""
    import torch
    from torch import nn
    from transformers import Trainer

    from drkit.train.acceleration import compile_options
    from drkit.train.trainer import training_arguments

    training, model = Training(**settings), nn.Linear(1, 1)
    with TemporaryDirectory(prefix=SCRATCH) as folder:
        arguments = training_arguments(training, Path(folder), _STEPS, seed=0)
        Trainer(model=model, args=arguments).create_optimizer_and_scheduler(_STEPS)
    if options := compile_options(training.arguments):  # it may need a C++ compiler, which may be missing
        device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.compile(model.to(device), **options)(torch.ones(2, 1, device=device))


def problems(tried: Mapping[str, Any]) -> list[str]:
    """Return a line for each training that cannot start, given the settings of `Training` by table."""
    found = []
    for name, settings in tried.items():
        try:
            _try(settings)
        except Exception as error:  # each argument has errors of its own
            found.append(f"{next(iter(str(error).strip().splitlines()), type(error).__name__)} @ {name}")
    return found


if __name__ == "__main__":
    json.dump(problems(json.load(sys.stdin)), sys.stdout)
