"""One training over transformers' Trainer: a module that takes and returns plain dicts, batches decided beforehand.

The Trainer brings devices, mixed precision, accumulation, schedules and checkpoints; drkit brings the batches, and
checkpoints that are either whole or ignored.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from drkit.errors import DrkitError
from drkit.runs import gradients, processes
from drkit.runs.batches import Example, Schedule, count_batches
from drkit.runs.manifest import CHECKPOINTS
from drkit.runs.memory import trimmer
from drkit.runs.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from drkit.core.recipe import Training
    from drkit.runs.stage import StageRun

WEIGHTS = "model.safetensors"
COMPLETE = ".complete"
_TRIM_STEPS = 50
Collate = Callable[[list[Example]], Mapping[str, Tensor]]


@frozen
class TrainingResult:
    """What a training did: optimizer steps, seconds, the mean loss over its last tenth, and its log."""

    steps: int
    seconds: float
    loss: float
    log: tuple[Mapping[str, float], ...]


def train_stage(
    stage: StageRun,
    module: nn.Module,
    collate: Collate,
    *,
    training: Training,
    lengths: NDArray[np.int32],
    callbacks: Sequence[TrainerCallback] = (),
) -> TrainingResult:
    """Train a stage's module on examples of these lengths i32[n], resuming from what an earlier attempt left.

    Leaves `log.jsonl` in the stage's folder; the checkpoints go when the stage is done.
    """
    schedule = Schedule(
        lengths=lengths,
        batch_size=training.per_device_train_batch_size * processes.count(),
        batches=count_batches(training, len(lengths), processes=processes.count()),
        seed=stage.recipe.seed,
    )
    result = train(
        module,
        schedule,
        collate,
        training=training,
        folder=stage.folder / CHECKPOINTS,
        progress=stage.progress,
        seed=stage.recipe.seed,
        callbacks=callbacks,
    )
    lines = "".join(f"{json.dumps(dict(entry))}\n" for entry in result.log)
    (stage.folder / "log.jsonl").write_text(lines, encoding="utf-8")
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

    `module` is what `drkit.runs.gradients` takes gradients of. Raises DrkitError for an argument
    that TrainingArguments refuses, and where the loss is no longer finite.
    """
    steps = len(schedule) // training.gradient_accumulation_steps
    arguments = _arguments(training, folder, steps, seed)
    trainer = ScheduledTrainer(module, schedule, collate, args=arguments, chunk=training.gradient_cache_chunk)
    for callback in (_Report(progress), _GiveBack(), *callbacks):
        trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    set_seed(seed)  # dropout follows the run's seed, whatever ran before in this process
    resumed = newest_checkpoint(folder)
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
        # Several processes without an accelerator: accelerate wants to be told.
        "use_cpu": processes.count() > 1 and not torch.cuda.is_available(),
        "ddp_broadcast_buffers": False,  # processes may have different numbers of chunks
        "dataloader_pin_memory": torch.cuda.is_available(),
        "optim": "adamw_torch_fused",
    }
    try:
        made = TrainingArguments(**{**own, **training.arguments})
    except (TypeError, ValueError) as error:
        raise DrkitError(f"the training arguments do not fit: {error}; see transformers.TrainingArguments") from error
    # One device a process: torch's DataParallel would cut a batch's pairs apart. More devices come by torchrun.
    made._n_gpu = min(made.n_gpu, 1)
    return made


class ScheduledTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer over a fixed schedule of batches, with safetensors-only model checkpoints.

    The schedule's batches are those of all processes together: each takes its share of every batch, so that a run on
    two processes sees what a run on one sees with a batch twice the size. chunk: rows a forward pass (0: all).
    """

    def __init__(
        self, module: nn.Module, schedule: Schedule, collate: Collate, *, args: TrainingArguments, chunk: int = 0
    ) -> None:
        super().__init__(model=module, args=args, train_dataset=_Examples(), data_collator=collate)
        self._schedule, self._chunk = schedule, chunk
        self._figures: dict[str, Tensor] = {}
        self._counted = 0

    def get_train_dataloader(self) -> Any:
        """The schedule's batches, of each this process' share."""
        return DataLoader(
            self.train_dataset,
            batch_sampler=self._schedule.share(self.args.process_index, self.args.world_size),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def training_step(self, model: nn.Module, inputs: Mapping[str, Tensor], *_: Any, **__: Any) -> Tensor:
        """The gradients of one batch; the module's figures are summed on the device until the next log."""
        model.train()
        accumulated = self.current_gradient_accumulation_steps
        way = gradients.Way(
            forward=model,
            backward=lambda loss: self.accelerator.backward(loss / accumulated),
            chunk=self._chunk,
            accumulate=lambda: self.accelerator.no_sync(model),
        )
        module: Any = self.accelerator.unwrap_model(model)
        loss, figures = gradients.take(module, self._prepare_inputs(inputs), way)
        for name, value in figures.items():
            self._figures[name] = self._figures.get(name, 0) + value.detach()
        self._counted += 1
        shown: Tensor = loss / accumulated
        return shown

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds the module's own figures, as means since the last log."""
        if "loss" in logs and self._counted:
            means = {name: float(total) / self._counted for name, total in self._figures.items()}
            logs = {**logs, **{name: round(value, 5) for name, value in means.items()}}
            self._figures, self._counted = {}, 0
        super().log(logs, *args, **kwargs)

    def _save(self, output_dir: str | None = None, **_: Any) -> None:
        """Weights alone, tied ones once; the Trainer's own way would pickle its arguments beside them."""
        from safetensors.torch import save_model

        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.accelerator.unwrap_model(self.model), str(folder / WEIGHTS))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        from safetensors.torch import load_model

        load_model(model or self.model, str(Path(resume_from_checkpoint) / WEIGHTS))

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        self.accelerator.wait_for_everyone()
        # The mark comes last: a checkpoint that a kill cut short has none, and is ignored.
        if self.is_world_process_zero():
            Path(self.args.output_dir, f"checkpoint-{self.state.global_step}", COMPLETE).touch()
        self.accelerator.wait_for_everyone()


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`; those that a kill cut short are removed."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    for path in found:
        if not (path / COMPLETE).exists():
            shutil.rmtree(path, ignore_errors=True)  # another process may be at it too
    whole = [path for path in found if path.exists()]
    return whole[-1] if whole else None


class _Examples(Dataset[Example]):
    """The schedule's pairs themselves: what stands behind them is looked up by the collator, a batch at a time."""

    def __getitem__(self, example: Example) -> Example:
        return example

    def __len__(self) -> int:
        return 2**62


class _GiveBack(TrainerCallback):  # type: ignore[misc]
    """Hands freed memory back now and then: often enough to stay flat, seldom enough to cost nothing."""

    def __init__(self) -> None:
        self._give_back = trimmer()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step % _TRIM_STEPS == 0:
            self._give_back()


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
                )
            self._last = {"loss": loss}
