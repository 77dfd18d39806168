"""One training over transformers' Trainer: a module that takes and returns plain dicts, batches decided beforehand.

The Trainer brings devices, mixed precision, accumulation, schedules and checkpoints; drkit brings the batches, and
checkpoints that are either whole or ignored.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import nn
from transformers import TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from drkit.core.write import json_text
from drkit.errors import DrkitError
from drkit.runs import processes
from drkit.runs.manifest import CHECKPOINTS
from drkit.runs.progress import Progress
from drkit.runs.training.batches import Schedule, count_batches
from drkit.runs.training.memory import trimmer
from drkit.runs.training.trainer import (
    BROKEN,
    TERM,
    Collate,
    MarkComplete,
    OneDevice,
    ScheduledTrainer,
    newest_checkpoint,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from drkit.core.recipe import Training

_TRIM_STEPS = 50


@frozen
class TrainingResult:
    """What a training did: optimizer steps, seconds, the mean loss over its last tenth, and its log."""

    steps: int
    seconds: float
    loss: float
    log: tuple[Mapping[str, float], ...]


def train_in(
    folder: Path,
    module: nn.Module,
    collate: Collate,
    *,
    training: Training,
    lengths: NDArray[np.int32],
    seed: int,
    progress: Progress,
    callbacks: Sequence[TrainerCallback] = (),
) -> TrainingResult:
    """Train a stage's module on examples of these lengths i32[n], resuming from what an earlier attempt left.

    Leaves `log.jsonl` and `training.json` (steps, loss, seconds) in the stage's folder; the checkpoints go when the
    stage is done.
    """
    schedule = Schedule(
        lengths=lengths,
        batch_size=training.per_device_train_batch_size * processes.count(),
        batches=count_batches(training, len(lengths), processes=processes.count()),
        seed=seed,
    )
    result = train(
        module,
        schedule,
        collate,
        training=training,
        folder=folder / CHECKPOINTS,
        progress=progress,
        seed=seed,
        callbacks=callbacks,
    )
    lines = "".join(f"{json.dumps(dict(entry), sort_keys=True)}\n" for entry in result.log)
    (folder / "log.jsonl").write_text(lines, encoding="utf-8")
    done = {"steps": result.steps, "loss": result.loss, "seconds": result.seconds}
    (folder / "training.json").write_text(json_text(done), encoding="utf-8")
    return result


def train(
    module: nn.Module,
    schedule: Schedule,
    collate: Collate,
    *,
    training: Training,
    folder: Path,
    progress: Progress,
    seed: int,
    callbacks: Sequence[TrainerCallback] = (),
) -> TrainingResult:
    """Train `module` in place; checkpoints go to `folder`, and the newest whole one there is gone on from.

    `module` is what `drkit.runs.training.gradients` takes gradients of. Raises DrkitError for an argument
    that TrainingArguments refuses, and where the loss is no longer finite.
    """
    steps = len(schedule) // training.gradient_accumulation_steps
    arguments = _arguments(training, folder, steps, seed)
    trainer = ScheduledTrainer(module, schedule, collate, args=arguments, chunk=training.gradient_cache_chunk)
    # A checkpoint is marked before others act on it; the last callback hears what the others decide.
    for callback in (MarkComplete(), _Report(progress), _GiveBack(), *callbacks, _LogAll()):
        trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    set_seed(seed)  # dropout follows the run's seed, whatever ran before in this process
    resumed = newest_checkpoint(folder)
    with warnings.catch_warnings():
        # accelerate means to rename what transformers hands it; once a process and training, nobody can mend it.
        warnings.filterwarnings("ignore", message=".*broadcast_buffers", category=FutureWarning)
        done = trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
    log = tuple(entry for entry in trainer.state.log_history if "loss" in entry)
    last = [entry["loss"] for entry in log[-max(len(log) // 10, 1) :]]
    return TrainingResult(
        steps=trainer.state.global_step,
        seconds=round(done.metrics["train_runtime"], 2),
        loss=sum(last) / len(last) if last else math.nan,
        log=log,
    )


def _arguments(training: Training, folder: Path, steps: int, seed: int) -> TrainingArguments:
    warmup = training.warmup_steps
    own = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": training.per_device_train_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
        "learning_rate": training.learning_rate,
        "warmup_steps": math.ceil(warmup * steps) if warmup < 1 else int(warmup),
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "lr_scheduler_type": training.lr_scheduler_type,
        "logging_steps": training.logging_steps,
        "save_steps": training.save_steps,
        "bf16": training.bf16,
        "seed": seed,
        "save_total_limit": 2,
        "report_to": "none",
        "logging_nan_inf_filter": False,  # a loss that is not finite must be seen, not averaged away
        "disable_tqdm": True,
        "remove_unused_columns": False,
        # Several processes, or bfloat16, without an accelerator: they want to be told.
        "use_cpu": not torch.cuda.is_available() and (processes.count() > 1 or not torch.backends.mps.is_available()),
        "ddp_broadcast_buffers": False,  # processes may have different numbers of chunks
        "dataloader_pin_memory": torch.cuda.is_available(),
        "optim": "adamw_torch_fused",
    }
    try:
        return OneDevice(**{**own, **training.arguments})
    except (TypeError, ValueError) as error:
        raise DrkitError(f"the training arguments do not fit: {error}; see transformers.TrainingArguments") from error


class _GiveBack(TrainerCallback):  # type: ignore[misc]
    """Hands freed memory back now and then: often enough to stay flat, seldom enough to cost nothing."""

    def __init__(self) -> None:
        self._give_back = trimmer()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step % _TRIM_STEPS == 0:
            self._give_back()


class _LogAll(TrainerCallback):  # type: ignore[misc]
    """A line of the log after the last step, and before a checkpoint, which would forget the steps since the last."""

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_save or control.should_training_stop or state.global_step >= state.max_steps:
            control.should_log = True


def _terms_behind(logs: Mapping[str, Any]) -> str:
    """Return a clause on the term of the loss that was the first not to be finite; empty where it has no terms.

    One step later the weights, and so every term, are not finite either: the first has been so in the most steps.

    >>> _terms_behind({"encoder_loss_not_finite": 2.0, "decoder_loss_not_finite": 1.0})
    "; the first of its terms that was not finite: 'encoder'"
    """
    steps = {name: count for name, count in logs.items() if name.endswith(TERM + BROKEN)}
    first = [repr(name.removesuffix(TERM + BROKEN)) for name, count in steps.items() if count == max(steps.values())]
    return f"; the first of its terms that was not finite: {' and '.join(first)}" if first else ""


class _Report(TrainerCallback):  # type: ignore[misc]
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last: dict[str, float] = {}

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self._progress.advance(state.global_step, state.max_steps, "steps", **self._last)

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            loss = float(logs["loss"])
            if not math.isfinite(loss):
                raise DrkitError(
                    f"the loss is {loss} at step {state.global_step}: lower learning_rate, or raise warmup_steps"
                    f"{_terms_behind(logs)}"
                )
            self._last = {"loss": loss}
