"""transformers' arguments of a training: made from the recipe's settings, and tried before a run starts.

A run tries them by `python -m drkit.train.arguments`: making `TrainingArguments` changes settings of torch and
accelerate for the whole process.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from drkit.core import processes
from drkit.core.files import SCRATCH
from drkit.errors import DrkitError
from drkit.recipe.training import Training

# The fewest log lines of a training, whatever `logging_steps` is, so that its loss is a curve.
_LOG_LINES = 10
# Steps of a training that is only tried.
_STEPS = 10
# Arguments of transformers that would compile a whole module, which torch cannot: it builds frozen objects inside.
COMPILING = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
# .. and those that would call methods of a whole model, which a module of drkit's does not have. Newer names first.
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
_OPTIONS_OF_CHECKPOINTING = ("preserve_rng_state", "determinism_check", "use_reentrant")
# What only transformers' own training step or an evaluation of the Trainer would update.
_UNUSABLE_OPTIMIZERS, _UNUSABLE_SCHEDULERS = ("lomo", "adalomo", "schedule_free"), ("reduce_lr_on_plateau", "greedy")


class OneDevice(TrainingArguments):  # type: ignore[misc]
    """TrainingArguments with one device per process; torch's DataParallel would split a batch's pairs."""

    @property
    def n_gpu(self) -> int:
        """At most 1; use torchrun for more devices."""
        return min(int(super().n_gpu), 1)


def training_arguments(
    training: Training, folder: Path, steps: int, seed: int, *, micro_batches: int = 1
) -> TrainingArguments:
    """Return transformers' arguments of a training. Raises DrkitError for those that it rejects.

    micro_batches: those of an optimizer step.
    """
    warmup = training.warmup_steps
    arguments = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": training.per_device_train_batch_size,
        "gradient_accumulation_steps": micro_batches,
        "learning_rate": training.learning_rate,
        "warmup_steps": math.ceil(warmup * steps) if warmup < 1 else int(warmup),
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "lr_scheduler_type": training.lr_scheduler_type,
        "logging_steps": min(training.logging_steps, max(steps // _LOG_LINES, 1)),
        "save_steps": training.save_steps,
        "bf16": training.bf16,
        "seed": seed,
        "report_to": "none",
        "logging_nan_inf_filter": False,  # a loss that is not finite must show, not be averaged away
        "disable_tqdm": True,
        "remove_unused_columns": False,
        # transformers must know if several processes, or bfloat16, run without an accelerator.
        "use_cpu": not torch.cuda.is_available()
        and (processes.process_count() > 1 or not torch.backends.mps.is_available()),
        "ddp_broadcast_buffers": False,  # processes may have different numbers of chunks
        "dataloader_pin_memory": torch.cuda.is_available(),
        "optim": "adamw_torch_fused",
    }
    own = (*COMPILING, *CHECKPOINTING, *(f"{name}_kwargs" for name in CHECKPOINTING))
    free = {name: value for name, value in training.arguments.items() if name not in own}
    optimizer, schedule = str(free.get("optim", "")), str(training.lr_scheduler_type)
    if optimizer.startswith(_UNUSABLE_OPTIMIZERS):
        raise DrkitError(f"the optimizer {optimizer!r} needs a training step of its own; choose another `optim`")
    if schedule in _UNUSABLE_SCHEDULERS:
        raise DrkitError(
            f"the schedule {schedule!r} follows measurements that drkit's trainings do not make; choose another "
            f"lr_scheduler_type, such as linear or cosine"
        )
    try:
        return OneDevice(**{**arguments, **free})
    except (ImportError, TypeError, ValueError) as error:  # ImportError: the package of an argument is missing
        raise DrkitError(f"invalid training arguments: {error}; see transformers.TrainingArguments") from error


def compile_options(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what `torch.compile` is called with for transformers' arguments of a training; None: do not compile.

    Shapes are dynamic from the start, so that a resumed training compiles the same code as an uninterrupted one.
    """
    on, backend, mode = (arguments.get(name) for name in COMPILING)
    if not (on or backend or mode):
        return None
    options = {"backend": backend or "inductor", "dynamic": True}
    return options if mode is None else {**options, "mode": mode}


def checkpoint_options(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options of `torch.utils.checkpoint.checkpoint` for transformers' arguments; None: keep activations.

    Raises DrkitError for options that it does not have, and for the reentrant variant, which cached gradients and
    several processes cannot use.
    """
    if not any(arguments.get(name) for name in CHECKPOINTING):
        return None
    given = [arguments[name] for name in (f"{one}_kwargs" for one in CHECKPOINTING) if arguments.get(name)]
    options = dict(given[0]) if given and isinstance(given[0], Mapping) else {}
    wrong = [name for name in options if name not in _OPTIONS_OF_CHECKPOINTING]
    if wrong or (given and not isinstance(given[0], Mapping)) or options.get("use_reentrant"):
        raise DrkitError(
            f"invalid options of gradient_checkpointing: expected a table with any of "
            f"{', '.join(_OPTIONS_OF_CHECKPOINTING)} (false), got {given[0]!r:.80}"
        )
    return {**options, "use_reentrant": False}


def problems(tried: Mapping[str, Any]) -> list[str]:
    """Return a line for each training that cannot start, given the settings of `Training` by table.

    Makes its arguments, optimizer and scheduler, and compiles a layer, for which a C++ compiler may be missing.
    """
    found, device = [], "cuda" if torch.cuda.is_available() else "cpu"
    for name, settings in tried.items():
        training, model = Training(**settings), nn.Linear(1, 1)
        try:
            with TemporaryDirectory(prefix=SCRATCH) as folder:
                arguments = training_arguments(training, Path(folder), _STEPS, seed=0)
                Trainer(model=model, args=arguments).create_optimizer_and_scheduler(_STEPS)
            checkpoint_options(training.arguments)
            if options := compile_options(training.arguments):
                torch.compile(model.to(device), **options)(torch.ones(2, 1, device=device))
        except Exception as error:  # each argument has errors of its own
            found.append(f"{next(iter(str(error).strip().splitlines()), type(error).__name__)} @ {name}")
    return found


if __name__ == "__main__":
    json.dump(problems(json.load(sys.stdin)), sys.stdout)
