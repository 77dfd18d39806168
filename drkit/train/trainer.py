"""Training a module with transformers' Trainer, over a schedule of batches that is fixed beforehand.

The Trainer handles devices, mixed precision, accumulation, learning rate schedules and checkpoints. drkit adds the
batches, and completes and rotates the checkpoints (`drkit.train.resuming`).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

from drkit.core import processes
from drkit.core.files import CHECKPOINTS, LOG, TRAINING, write_json, write_text
from drkit.core.progress import Progress
from drkit.core.scheduled_parts import follow_progress
from drkit.core.schedules import CollatesAtProgress
from drkit.decoders.layers import PostLnLayer
from drkit.encoders.architectures import find_architecture
from drkit.recipe.training import Training
from drkit.train import gradients
from drkit.train.arguments import checkpoint_options, compile_options, training_arguments
from drkit.train.batches import EpochBatches, Example, Schedule, Share
from drkit.train.callbacks import CompleteCheckpoints, RecordProcesses, ReportProgress, SaveOnInterrupt, TrimHeap
from drkit.train.logs import TOKENS_PER_SECOND, LogLastStep, MarksTokens, Meter, Sums
from drkit.train.lora import adapted, count_trained, trained_weights
from drkit.train.resuming import KEPT_CHECKPOINTS, newest_checkpoint

_WEIGHTS = "model.safetensors"
Collate = Callable[[list[Example]], Mapping[str, Tensor]]


@frozen
class TrainingResult:
    """The result of a training: optimizer steps, seconds, the mean loss over the last tenth of its log, and the log.

    processes: the number of processes by the first step that it trained.
    """

    steps: int
    seconds: float
    loss: float
    log: tuple[Mapping[str, float], ...]
    processes: Mapping[str, int] = field(factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Steps, loss and seconds, for the manifest."""
        return {"steps": self.steps, "loss": self.loss, "seconds": self.seconds}


def train_in(
    folder: Path,
    module: Any,
    collate: Collate,
    *,
    training: Training,
    lengths: NDArray[np.int32],
    seed: int,
    progress: Progress,
    callbacks: Sequence[TrainerCallback] = (),
    rates: NDArray[np.float64] | None = None,
    source: EpochBatches | None = None,
) -> TrainingResult:
    """Train a stage's module on examples of these lengths i32[n], resuming an earlier attempt if there was one.

    rates: how often each example is read, source: composes the batches, as in `Schedule`.
    module: a `drkit.train.gradients.Comparable`. Writes `log.jsonl` and `training.json` (steps, loss, seconds, number
    of examples, batch size of all processes, the number of processes by the first step that it trained, throughput) to
    the stage's folder.
    Checkpoints are removed when the stage is finished.
    """
    schedule = Schedule.of(training, lengths, seed=seed, compares=module.compares(), rates=rates, source=source)
    if training.batch_size and training.batch_size > schedule.examples:
        progress.note(f"a step has all {schedule.examples:,} examples, fewer than batch_size = {training.batch_size:,}")
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
    # What depends on the time is not in the log, so that equal trainings have equal logs.
    logged = [{name: value for name, value in entry.items() if name != TOKENS_PER_SECOND} for entry in result.log]
    write_text(folder / LOG, "".join(f"{json.dumps(entry, sort_keys=True)}\n" for entry in logged))
    throughput = [{name: entry[name] for name in ("step", TOKENS_PER_SECOND) if name in entry} for entry in result.log]
    batches = {"batch_size": min(schedule.batch_size, schedule.examples), "processes": result.processes}
    done = {**result.metrics, "examples": len(lengths), **batches, "throughput": throughput}
    write_json(folder / TRAINING, done)
    return result


@contextmanager
def restored_torch() -> Iterator[None]:
    """Restore settings of torch after a block that arguments set for the whole process.

    They are the precision of matrix products (`tf32`) and deterministic algorithms (`full_determinism`).
    """
    backends: Any = torch.backends
    before = backends.fp32_precision, backends.cudnn.deterministic, backends.cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        backends.fp32_precision, backends.cudnn.deterministic, backends.cudnn.benchmark = before
        torch.use_deterministic_algorithms(deterministic, warn_only=only_warns)


@restored_torch()
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

    With `training.lora`, adapters are trained, and merged at the end (`drkit.train.lora`).

    Raises DrkitError for an argument that TrainingArguments rejects, and when the loss is not finite.
    """
    with adapted(module, training.lora, seed=seed):
        if training.lora:
            trained, weights = count_trained(module)
            progress.note(f"LoRA: {trained:,} of {weights:,} weights are trained")
        return _train(
            module,
            schedule,
            collate,
            training=training,
            folder=folder,
            progress=progress,
            seed=seed,
            callbacks=callbacks,
        )


def _train(
    module: nn.Module,
    schedule: Schedule,
    collate: Collate,
    *,
    training: Training,
    folder: Path,
    progress: Progress,
    seed: int,
    callbacks: Sequence[TrainerCallback],
) -> TrainingResult:
    steps = schedule.batches // schedule.per_step
    arguments = training_arguments(training, folder, steps, seed, micro_batches=schedule.micro_batches)
    if options := compile_options(training.arguments):
        compile_layers(module, options)
    kept = max(arguments.save_total_limit or 0, KEPT_CHECKPOINTS)
    arguments.save_total_limit = None  # transformers rotates by modification time, but a clock may step back
    meter = Meter(module.marks if isinstance(module, MarksTokens) else ())
    trainer = ScheduledTrainer(module, schedule, collate, args=arguments, training=training, meter=meter)
    # A checkpoint is completed after callbacks have added their files; the last callback sees the others' decisions.
    interrupt = SaveOnInterrupt(progress)
    recorded = RecordProcesses(folder)
    first = (recorded, meter, ReportProgress(progress), TrimHeap())
    for callback in (*first, *callbacks, trainer.sums, CompleteCheckpoints(kept), LogLastStep(), interrupt):
        trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    set_seed(seed)  # dropout follows the run's seed, whatever ran before in this process
    resumed = processes.broadcast(None if processes.rank() else newest_checkpoint(folder, progress))
    checkpointing = checkpointed_layers(module, checkpoint_options(training.arguments))
    with warnings.catch_warnings(), interrupt.handling(), checkpointing:
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
        processes=recorded.numbers(),
    )


class ScheduledTrainer(Trainer):  # type: ignore[misc]
    """transformers' Trainer over a fixed schedule of batches, with model checkpoints in safetensors only.

    The schedule's batches span all processes, of which each reads its share, so that the gradients are those of one
    process with the whole batch. Local losses are means over the items of a whole step. meter: started before each
    batch.
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
        self._totals: dict[str, Tensor] | None = None
        self.sums = Sums(schedule.micro_batches)

    def get_train_dataloader(self) -> Any:
        """Return a loader of this process' share of every batch."""
        share: Any = self._schedule.share(self.args.process_index, self.args.world_size)
        collate = self.data_collator
        if isinstance(collate, CollatesAtProgress):
            steps = self._schedule.batches // self._schedule.per_step
            share, collate = _WithProgress(share, self._schedule.micro_batches, steps), _AtProgress(collate)
        return DataLoader(
            self.train_dataset,
            batch_sampler=share,
            collate_fn=collate,
            num_workers=self.args.dataloader_num_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of a step, and count their items; the time that this takes counts."""
        self._meter.start()
        found = super().get_batch_samples(*args, **kwargs)
        module: Any = self.accelerator.unwrap_model(self.model)
        follow_progress(module, self.state.global_step / (self._schedule.batches // self._schedule.per_step))
        if self._schedule.micro_batches > 1:
            module.train()
            self._totals = gradients.count_step(module, found[0], self.args.device)
        return found

    def training_step(self, model: nn.Module, inputs: Mapping[str, Tensor], *_: Any, **__: Any) -> Tensor:
        """Compute the gradients of one batch; the module's metrics are summed on the device until the next log."""
        model.train()
        self._meter.count(inputs)
        strategy = gradients.GradientStrategy(
            forward=model,
            backward=self.accelerator.backward,
            chunk=self._chunk(inputs),
            accumulate=lambda: self.accelerator.no_sync(model),
            batches=self._schedule.per_step,
            totals=self._totals,
        )
        module: Any = self.accelerator.unwrap_model(model)
        loss, metrics = gradients.backward(module, self._moved(inputs), strategy)
        self.sums.add(loss, metrics)
        return loss

    def _moved(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a batch on the device."""
        return {name: tensor.to(self.args.device, non_blocking=True) for name, tensor in tensors.items()}

    def _chunk(self, tensors: Mapping[str, Tensor]) -> int:
        """Return the texts of a forward pass: all (0), unless they are those of more examples than may be read at once.

        The texts of an example are spread evenly over the rows of the tensors that have most.
        """
        if self._training.gradient_cache_chunk:
            return self._training.gradient_cache_chunk
        schedule = self._schedule
        together = math.ceil(min(schedule.batch_size, schedule.examples) / schedule.parts)
        passes = math.ceil(math.ceil(together / self.args.world_size) / self._training.per_device_train_batch_size)
        return math.ceil(max(map(len, tensors.values())) / passes) if passes > 1 else 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the means of the loss and of the module's own metrics since the last log, and the throughput."""
        if "loss" in logs and self.sums.batches:
            last = next((entry["step"] for entry in reversed(self.state.log_history) if "loss" in entry), 0)
            mean = float(self.accelerator.reduce(self.sums.loss, "mean")) / (self.state.global_step - last)
            self._share_metrics()
            logs = {**logs, "loss": round(mean, 4), **self.sums.means(), **self._meter.read()}
            self.sums.clear()
        super().log(logs, *args, **kwargs)

    def _share_metrics(self) -> None:
        """Replace the sums of metrics by their means over processes, each of which has those of its share."""
        if self.args.world_size > 1 and (sums := self.sums.metrics):
            mine = torch.stack([torch.as_tensor(sums[name], device=self.args.device).float() for name in sorted(sums)])
            self.sums.metrics = dict(zip(sorted(sums), self.accelerator.reduce(mine, "mean").unbind(), strict=True))

    def save_model(self, output_dir: str | None = None, **_: Any) -> None:
        """Write the trained weights as safetensors, tied ones under each of their names, so that loading finds them."""
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_file(trained_weights(self.accelerator.unwrap_model(self.model)), str(folder / _WEIGHTS))


# (progress, (epoch, example))
_Timed = tuple[float, Example]


@frozen(eq=False)
class _WithProgress:
    """A batch sampler whose examples say how far the training is: the steps before theirs, as a share of all."""

    batches: Share
    per_step: int
    steps: int

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[_Timed]]:
        for number, batch in enumerate(self.batches):
            progress = number // self.per_step / self.steps
            yield [(progress, example) for example in batch]


@frozen(eq=False)
class _AtProgress:
    """Collates such a batch by the collator of its progress."""

    collate: CollatesAtProgress

    def __call__(self, batch: Sequence[_Timed]) -> Mapping[str, Tensor]:
        tensors: Mapping[str, Tensor] = self.collate.at_progress(batch[0][0])([example for _, example in batch])
        return tensors


class _Examples(Dataset[Example]):
    """A dataset whose items are the schedule's pairs; the collator looks up their data, a batch at a time."""

    def __getitem__(self, example: Example) -> Example:
        return example

    def __len__(self) -> int:
        return 2**62


def compile_layers(module: nn.Module, options: Mapping[str, Any]) -> int:
    """Compile the layers of all encoders and decoders of a module in place, and return their number.

    The names of weights stay as they are. Layers of the same class share the compiled code. Forgets what was compiled
    before in this process: torch runs code uncompiled after several versions of it.
    """
    torch.compiler.reset()
    layers = transformer_layers(module)
    for layer in layers:
        layer.compile(**options)
    return len(layers)


@contextmanager
def checkpointed_layers(module: nn.Module, options: Mapping[str, Any] | None) -> Iterator[None]:
    """Keep only the inputs of the layers of all encoders and decoders for the backward pass, within a block.

    A layer is computed again there, with the same random numbers: the gradients are the same, in less memory. options:
    those of `torch.utils.checkpoint.checkpoint`; None: keep everything.
    """
    layers = transformer_layers(module) if options is not None else []
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, **options or {})
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def transformer_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of all encoders of a supported architecture in a module, and those of drkit's decoders."""
    found: list[nn.Module] = [one for one in module.modules() if isinstance(one, PostLnLayer)]
    models = [one for one in module.modules() if isinstance(one, PreTrainedModel) and one.base_model is one]
    for model in models:  # without their heads
        if where := find_architecture(model.config.model_type):
            found += model.get_submodule(where.layers).children()
    return found
