"""Training a module with transformers' Trainer, over a schedule of batches that is fixed beforehand.

The Trainer handles devices, mixed precision, accumulation, learning rate schedules and checkpoints. drkit adds the
batches, and completes and rotates the checkpoints (`drkit.train.resuming`).
"""

from __future__ import annotations

import ctypes
import json
import math
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import define, field, frozen
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from drkit.core import processes
from drkit.core.files import CHECKPOINTS, LOG, TRAINING, make_folder, write_text
from drkit.core.progress import Progress
from drkit.errors import DrkitError
from drkit.recipe.schema import Training
from drkit.recipe.toml import json_text
from drkit.train import gradients
from drkit.train.acceleration import (
    COMPILING,
    compile_layers,
    compile_options,
)
from drkit.train.batches import Example, Schedule
from drkit.train.resuming import CALLBACKS, KEPT, complete_checkpoint, newest_checkpoint
from drkit.train.throughput import TOKENS_PER_SECOND, MarksTokens, Meter

WEIGHTS = "model.safetensors"
# Endings of names in the log: the loss of a term, and the number of steps in which it was not finite.
TERM_LOSS, NOT_FINITE = "_loss", "_not_finite"
Collate = Callable[[list[Example]], Mapping[str, Tensor]]
_TRIM_STEPS = 50
# The fewest log lines of a training, whatever `logging_steps` is, so that its loss is a curve.
_LOG_LINES = 10


@frozen
class TrainingResult:
    """The result of a training: optimizer steps, seconds, the mean loss over the last tenth of its log, and the log."""

    steps: int
    seconds: float
    loss: float
    log: tuple[Mapping[str, float], ...]

    @property
    def metrics(self) -> dict[str, float]:
        """Steps, loss and seconds, for the manifest."""
        return {"steps": self.steps, "loss": self.loss, "seconds": self.seconds}


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
    rates: NDArray[np.float64] | None = None,
) -> TrainingResult:
    """Train a stage's module on examples of these lengths i32[n], resuming an earlier attempt if there was one.

    rates: how often each example is read, as in `Schedule`.
    Writes `log.jsonl` and `training.json` (steps, loss, seconds, number of examples, throughput) to the stage's folder.
    Checkpoints are removed when the stage is finished.
    """
    result = train(
        module,
        Schedule.of(training, lengths, seed=seed, processes=processes.count(), rates=rates),
        collate,
        training=training,
        folder=folder / CHECKPOINTS,
        progress=progress,
        seed=seed,
        callbacks=callbacks,
    )
    # What depends on the time is not in the log, so that equal trainings have equal logs.
    logged = [{name: value for name, value in entry.items() if name != TOKENS_PER_SECOND} for entry in result.log]
    write_text(folder / LOG, "".join(f"{json.dumps(entry, sort_keys=True)}\n" for entry in logged))
    throughput = [{name: entry[name] for name in ("step", TOKENS_PER_SECOND) if name in entry} for entry in result.log]
    done = {**result.metrics, "examples": len(lengths), "throughput": throughput}
    write_text(folder / TRAINING, json_text(done))
    return result


@contextmanager
def precision_given_back() -> Iterator[None]:
    """Undo what transformers' argument `tf32` sets for the whole process: it is not the next stage's."""
    backends: Any = torch.backends
    before = backends.fp32_precision
    try:
        yield
    finally:
        backends.fp32_precision = before


@precision_given_back()
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
    """Train `module` in place; checkpoints go to `folder`, and training resumes from the newest complete one.

    module: a `drkit.train.gradients.Comparable`. In a single process, Ctrl-C writes a checkpoint after the
    current step and raises KeyboardInterrupt then; a second Ctrl-C raises it at once.

    Raises DrkitError for an argument that TrainingArguments rejects, and when the loss is not finite.
    """
    steps = len(schedule) // training.gradient_accumulation_steps
    arguments = training_arguments(training, folder, steps, seed)
    if options := compile_options(training.arguments):
        compile_layers(module, options)
    kept = max(arguments.save_total_limit or 0, KEPT)
    arguments.save_total_limit = None  # transformers rotates by modification time, but a clock may step back
    meter = Meter(module.marks if isinstance(module, MarksTokens) else ())
    trainer = ScheduledTrainer(module, schedule, collate, args=arguments, training=training, meter=meter)
    # A checkpoint is completed after callbacks have added their files; the last callback sees the others' decisions.
    interrupt = _SaveOnInterrupt(progress)
    own = (_StopMeter(meter), _Report(progress), _TrimHeap())
    sums = _KeepSums(trainer.sums, folder / CALLBACKS / "sums.json")
    for callback in (*own, *callbacks, sums, _Seal(kept), _LogAll(), interrupt):
        trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    set_seed(seed)  # dropout follows the run's seed, whatever ran before in this process
    resumed = processes.broadcast(None if processes.rank() else newest_checkpoint(folder, progress))
    with warnings.catch_warnings(), interrupt.handling():
        # accelerate plans to rename an option that transformers passes; users cannot do anything about it.
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


def training_arguments(training: Training, folder: Path, steps: int, seed: int) -> TrainingArguments:
    """Return transformers' arguments of a training. Raises DrkitError for those that it rejects."""
    warmup = training.warmup_steps
    arguments = {
        "output_dir": str(folder),
        "max_steps": steps,
        "per_device_train_batch_size": training.per_device_train_batch_size,
        "gradient_accumulation_steps": training.gradient_accumulation_steps,
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
        "use_cpu": not torch.cuda.is_available() and (processes.count() > 1 or not torch.backends.mps.is_available()),
        "ddp_broadcast_buffers": False,  # processes may have different numbers of chunks
        "dataloader_pin_memory": torch.cuda.is_available(),
        "optim": "adamw_torch_fused",
    }
    free = {name: value for name, value in training.arguments.items() if name not in COMPILING}
    try:
        return OneDevice(**{**arguments, **free})
    except (ImportError, TypeError, ValueError) as error:  # ImportError: the package of an argument is missing
        raise DrkitError(f"invalid training arguments: {error}; see transformers.TrainingArguments") from error


class ScheduledTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer over a fixed schedule of batches, with model checkpoints in safetensors only.

    The schedule's batches span all processes: each reads its share of every batch, so that N processes equal one
    process with an N times larger batch. meter: started before each batch.
    """

    def __init__(
        self,
        module: nn.Module,
        schedule: Schedule,
        collate: Collate,
        *,
        args: TrainingArguments,
        training: Training,
        meter: Meter,
    ) -> None:
        super().__init__(model=module, args=args, train_dataset=_Examples(), data_collator=collate)
        self._schedule, self._training, self._meter = schedule, training, meter
        self.sums = _Sums()

    def get_train_dataloader(self) -> Any:
        """Return a loader of this process' share of every batch."""
        return DataLoader(
            self.train_dataset,
            batch_sampler=self._schedule.share(self.args.process_index, self.args.world_size),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of a step; the time that this takes counts."""
        self._meter.start()
        return super().get_batch_samples(*args, **kwargs)

    def training_step(self, model: nn.Module, inputs: Mapping[str, Tensor], *_: Any, **__: Any) -> Tensor:
        """Compute the gradients of one batch; the module's metrics are summed on the device until the next log."""
        model.train()
        self._meter.count(inputs)
        accumulation = self.current_gradient_accumulation_steps
        strategy = gradients.GradientStrategy(
            forward=model,
            backward=lambda loss: self.accelerator.backward(loss / accumulation),
            chunk=self._training.gradient_cache_chunk,
            accumulate=lambda: self.accelerator.no_sync(model),
        )
        module: Any = self.accelerator.unwrap_model(model)
        tensors = {name: tensor.to(self.args.device, non_blocking=True) for name, tensor in inputs.items()}
        loss, metrics = gradients.backward(module, tensors, strategy)
        shown: Tensor = loss / accumulation
        self.sums.add(shown, metrics)
        return shown

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the means of the loss and of the module's own metrics since the last log, and the throughput."""
        if "loss" in logs and self.sums.batches:
            last = next((entry["step"] for entry in reversed(self.state.log_history) if "loss" in entry), 0)
            mean = float(self.accelerator.reduce(self.sums.loss, "mean")) / (self.state.global_step - last)
            logs = {**logs, "loss": round(mean, 4), **self.sums.means(), **self._meter.read()}
            self.sums.clear()
        super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, **_: Any) -> None:
        """Write the weights as safetensors, tied ones under each of their names, so that loading finds all of them."""
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            weights = self.accelerator.unwrap_model(self.model).state_dict()
            save_file({name: weight.clone() for name, weight in weights.items()}, str(folder / WEIGHTS))


@define(eq=False)
class _Sums:
    """Sums since the last line of the log: the loss, metrics, and the batches in which a term was not finite."""

    loss: Any = 0.0
    metrics: dict[str, Any] = field(factory=dict)
    not_finite: dict[str, Any] = field(factory=dict)
    batches: int = 0

    def add(self, loss: Tensor, metrics: Mapping[str, Tensor]) -> None:
        """Add a batch; the sums stay on its device."""
        self.loss = self.loss + loss.detach()
        self.batches += 1
        for name, value in metrics.items():
            self.metrics[name] = self.metrics.get(name, 0) + value.detach()
            if name.endswith(TERM_LOSS):
                self.not_finite[name] = self.not_finite.get(name, 0) + (~value.detach().isfinite()).float()

    def means(self) -> dict[str, float]:
        """Return the mean of each metric, and the number of batches of each term that were not finite, if any."""
        means = {name: round(float(total) / self.batches, 5) for name, total in self.metrics.items()}
        counts = {f"{name}{NOT_FINITE}": count for name, total in self.not_finite.items() if (count := float(total))}
        return {**means, **counts}

    def clear(self) -> None:
        """Begin again."""
        self.loss, self.metrics, self.not_finite, self.batches = 0.0, {}, {}, 0

    def save(self, path: Path) -> None:
        """Write the sums."""
        totals = ({name: float(total) for name, total in table.items()} for table in (self.metrics, self.not_finite))
        write_text(path, json.dumps([float(self.loss), *totals, self.batches]))

    def load(self, path: Path) -> None:
        """Continue from saved sums, if there are any."""
        if path.is_file():
            self.loss, self.metrics, self.not_finite, self.batches = json.loads(path.read_text(encoding="utf-8"))


class _Examples(Dataset[Example]):
    """A dataset whose items are the schedule's pairs; the collator looks up their data, a batch at a time."""

    def __getitem__(self, example: Example) -> Example:
        return example

    def __len__(self) -> int:
        return 2**62


class OneDevice(TrainingArguments):  # type: ignore[misc]
    """TrainingArguments with one device per process; torch's DataParallel would split a batch's pairs."""

    @property
    def n_gpu(self) -> int:
        """At most 1; use torchrun for more devices."""
        return min(int(super().n_gpu), 1)


class _StopMeter(TrainerCallback):  # type: ignore[misc]
    """Stops the meter after each step, before other callbacks; waits for the GPU only if a log line follows."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        is_logged = control.should_log or control.should_save or state.global_step >= state.max_steps
        self._meter.stop(wait=is_logged)


class _KeepSums(TrainerCallback):  # type: ignore[misc]
    """Keeps the sums since the last line of the log in checkpoints: a resumed training logs what a whole one logs."""

    def __init__(self, sums: _Sums, path: Path) -> None:
        self._sums, self._path = sums, path

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._sums.load(self._path)

    def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        self._path.unlink(missing_ok=True)
        if state.is_world_process_zero and self._sums.batches:  # none right after a line of the log
            make_folder(self._path.parent)
            self._sums.save(self._path)


class _Seal(TrainerCallback):  # type: ignore[misc]
    """Completes each checkpoint once all of it is written. kept: the number of checkpoints that remain."""

    def __init__(self, kept: int) -> None:
        self._kept = kept

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Wait for the files of all processes, then complete the checkpoint."""
        processes.barrier()
        if state.is_world_process_zero:
            complete_checkpoint(Path(args.output_dir, f"checkpoint-{state.global_step}"), kept=self._kept)
        processes.barrier()


class _TrimHeap(TrainerCallback):  # type: ignore[misc]
    """Returns freed memory to the system every 50 steps: often enough to stay flat, and at no noticeable cost."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc only

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if self._trim is not None and state.global_step % _TRIM_STEPS == 0:
            self._trim(0)


class _LogAll(TrainerCallback):  # type: ignore[misc]
    """Logs after the last step and before a checkpoint of the schedule."""

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_save or control.should_training_stop or state.global_step >= state.max_steps:
            control.should_log = True


class _SaveOnInterrupt(TrainerCallback):  # type: ignore[misc]
    """On SIGINT (Ctrl-C), saves a checkpoint after the current step and raises KeyboardInterrupt.

    Several processes may get the signal at different steps, so they stop at once, as without this callback.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress, self._is_asked = progress, False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle SIGINT within a block, in the main thread only, and only where Python's own handler would."""
        is_main = threading.current_thread() is threading.main_thread()
        default = signal.default_int_handler
        if signal.getsignal(signal.SIGINT) is not default or not is_main or processes.count() > 1:
            yield
            return
        signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, default)

    def _ask(self, *_: Any) -> None:
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
        self._progress.note("interrupted: saving a checkpoint after this step; Ctrl-C again stops at once")

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._is_asked and control.should_training_stop and state.global_step < state.max_steps:
            raise KeyboardInterrupt  # stopped early: a checkpoint here would be trained on from
        control.should_save = control.should_save or self._is_asked

    def on_save(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self._is_asked:
            raise KeyboardInterrupt


def _first_not_finite(logs: Mapping[str, Any]) -> str:
    """Return a clause that names the first term of the loss that was not finite; empty if the loss has no terms.

    One step later the weights, and therefore all terms, are not finite either, so the first has the highest count.

    >>> _first_not_finite({"encoder_loss_not_finite": 2.0, "decoder_loss_not_finite": 1.0})
    "; the first term that was not finite: 'encoder'"
    """
    steps = {name: count for name, count in logs.items() if name.endswith(TERM_LOSS + NOT_FINITE)}
    first = [
        repr(name.removesuffix(TERM_LOSS + NOT_FINITE)) for name, count in steps.items() if count == max(steps.values())
    ]
    return f"; the first term that was not finite: {' and '.join(first)}" if first else ""


class _Report(TrainerCallback):  # type: ignore[misc]
    """Reports progress, and stops a training whose loss is not finite."""

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
                    f"{_first_not_finite(logs)}"
                )
            speed = {"tokens/s": logs[TOKENS_PER_SECOND]} if TOKENS_PER_SECOND in logs else {}
            self._last = {"loss": loss, **speed}
