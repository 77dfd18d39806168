"""transformers' Trainer over batches that were decided beforehand, with checkpoints that are whole or ignored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from drkit.runs import processes
from drkit.runs.training import gradients
from drkit.runs.training.batches import Example, Schedule

WEIGHTS = "model.safetensors"
COMPLETE = ".complete"
# In the log: what the name of a term's loss ends with, and the steps in which it was not finite.
TERM, BROKEN = "_loss", "_not_finite"
Collate = Callable[[list[Example]], Mapping[str, Tensor]]


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
        self._metrics: dict[str, Tensor] = {}
        self._broken: dict[str, Tensor] = {}  # steps in which a term of the loss was not finite
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
        """The gradients of one batch; the module's metrics are summed on the device until the next log."""
        model.train()
        accumulated = self.current_gradient_accumulation_steps
        strategy = gradients.GradientStrategy(
            forward=model,
            backward=lambda loss: self.accelerator.backward(loss / accumulated),
            chunk=self._chunk,
            accumulate=lambda: self.accelerator.no_sync(model),
        )
        module: Any = self.accelerator.unwrap_model(model)
        tensors = {name: tensor.to(self.args.device, non_blocking=True) for name, tensor in inputs.items()}
        loss, metrics = gradients.backward(module, tensors, strategy)
        for name, value in metrics.items():
            self._metrics[name] = self._metrics.get(name, 0) + value.detach()
            if name.endswith(TERM):
                self._broken[name] = self._broken.get(name, 0) + (~value.detach().isfinite()).float()
        self._counted += 1
        shown: Tensor = loss / accumulated
        return shown

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Adds the module's own metrics, as means since the last log."""
        if "loss" in logs and self._counted:
            means = {name: float(total) / self._counted for name, total in self._metrics.items()}
            broken = {f"{name}{BROKEN}": steps for name, total in self._broken.items() if (steps := float(total))}
            logs = {**logs, **{name: round(value, 5) for name, value in means.items()}, **broken}
            self._metrics, self._broken, self._counted = {}, {}, 0
        super().log(logs, *args, **kwargs)

    def save_model(self, output_dir: str | None = None, **how: Any) -> None:
        """Write the weights as safetensors, tied ones under each of their names: nothing is missing when they load."""
        from safetensors.torch import save_file

        if self.is_fsdp_enabled or self.is_deepspeed_enabled:  # weights in shards are theirs to gather
            super().save_model(output_dir, **how)
        elif self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            weights = self.accelerator.unwrap_model(self.model).state_dict()
            save_file({name: weight.clone() for name, weight in weights.items()}, str(folder / WEIGHTS))


class OneDevice(TrainingArguments):  # type: ignore[misc]
    """TrainingArguments of one device a process; torch's DataParallel would cut a batch's pairs apart."""

    @property
    def n_gpu(self) -> int:
        """At most 1: more devices come by torchrun."""
        return min(int(super().n_gpu), 1)


class MarkComplete(TrainerCallback):  # type: ignore[misc]
    """Marks a checkpoint when all of it is written: one that a kill cut short has no mark, and is ignored."""

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Wait for all processes' files, then mark."""
        processes.wait()
        if state.is_world_process_zero:
            Path(args.output_dir, f"checkpoint-{state.global_step}", COMPLETE).touch()
        processes.wait()


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
