"""transformers' Trainer over batches that were decided beforehand, with checkpoints that are whole or ignored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments

from drkit.runs.training import gradients
from drkit.runs.training.batches import Example, Schedule

WEIGHTS = "model.safetensors"
COMPLETE = ".complete"
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
