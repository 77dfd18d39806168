"""What a training logs: means of the loss and of its terms since the last line, and tokens a second."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback

from drkit.core.files import make_folder, write_text
from drkit.train.gradients import world_size
from drkit.train.resuming import CALLBACKS

TOKENS_PER_SECOND = "tokens_per_second"
# Endings of names in the log: the loss of a term, and the number of steps in which it was not finite.
TERM_LOSS, NOT_FINITE = "_loss", "_not_finite"
_SUMS = "sums.json"


class Sums(TrainerCallback):  # type: ignore[misc]
    """Sums since the last line of the log: the loss, metrics, and the batches in which a term was not finite.

    The losses and metrics of the `per_step` batches of a step add up to those of the step.

    Checkpoints keep them, so that a resumed training logs what an uninterrupted one logs.
    """

    def __init__(self, per_step: int = 1) -> None:
        self._per_step = per_step
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self.loss: Any = 0.0
        self.metrics: dict[str, Any] = {}
        self.not_finite: dict[str, Any] = {}
        self.batches = 0

    def add(self, loss: Tensor, metrics: Mapping[str, Tensor]) -> None:
        """Add a batch; the sums stay on its device."""
        self.loss = self.loss + loss.detach()
        self.batches += 1
        for name, value in metrics.items():
            self.metrics[name] = self.metrics.get(name, 0) + value.detach()
            if name.endswith(TERM_LOSS):
                self.not_finite[name] = self.not_finite.get(name, 0) + (~value.detach().isfinite()).float()

    def means(self) -> dict[str, float]:
        """Return each metric's mean over steps, and the number of batches of each term that were not finite, if any."""
        steps = self.batches / self._per_step
        means = {name: round(float(total) / steps, 5) for name, total in self.metrics.items()}
        counts = {f"{name}{NOT_FINITE}": count for name, total in self.not_finite.items() if (count := float(total))}
        return {**means, **counts}

    def on_train_begin(self, args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Continue from the sums of the checkpoint that training resumes from, if it has any."""
        path = Path(args.output_dir, CALLBACKS, _SUMS)
        if path.is_file():
            self.loss, self.metrics, self.not_finite, steps = json.loads(path.read_text(encoding="utf-8"))
            self.batches = steps * self._per_step  # which other processes may divide otherwise

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Write the sums, unless a line has just been logged."""
        path = Path(args.output_dir, CALLBACKS, _SUMS)
        path.unlink(missing_ok=True)
        if state.is_world_process_zero and self.batches:
            make_folder(path.parent)
            totals = ({key: float(total) for key, total in table.items()} for table in (self.metrics, self.not_finite))
            write_text(path, json.dumps([float(self.loss), *totals, self.batches // self._per_step]))


def first_not_finite(logs: Mapping[str, Any]) -> str:
    """Return a clause that names the first term of the loss that was not finite; empty if the loss has no terms.

    One step later the weights, and therefore all terms, are not finite either, so the first has the highest count.

    >>> first_not_finite({"encoder_loss_not_finite": 2.0, "decoder_loss_not_finite": 1.0})
    "; the first term that was not finite: 'encoder'"
    """
    steps = {name: count for name, count in logs.items() if name.endswith(TERM_LOSS + NOT_FINITE)}
    first = [
        repr(name.removesuffix(TERM_LOSS + NOT_FINITE)) for name, count in steps.items() if count == max(steps.values())
    ]
    return f"; the first term that was not finite: {' and '.join(first)}" if first else ""


class LogLastStep(TrainerCallback):  # type: ignore[misc]
    """Logs after the last step and before a checkpoint of the schedule."""

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Ask for a line."""
        if control.should_save or control.should_training_stop or state.global_step >= state.max_steps:
            control.should_log = True


@runtime_checkable
class MarksTokens(Protocol):
    """A module that names the tensors of a batch, bool[..], that are True at each token that its encoder reads."""

    marks: Sequence[str]


class Meter(TrainerCallback):  # type: ignore[misc]
    """Counts the tokens of batches, without padding, and the time that steps take.

    The clock runs from `start`, before a batch is fetched, to `stop`, after its step: time for probes, checkpoints and
    mining is left out. marks: see `MarksTokens`.
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = tuple(marks)
        self._tokens, self._seconds, self._started = 0, 0.0, 0.0

    def start(self) -> None:
        """Start the clock; the time until `stop` is added to the total."""
        self._started = time.perf_counter()

    def stop(self, *, wait: bool) -> None:
        """Stop the clock; wait: until the GPU has finished the work that it was given."""
        if wait and torch.cuda.is_available():
            torch.cuda.synchronize()
        self._seconds += time.perf_counter() - self._started

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop before other callbacks; wait for the GPU only if a log line follows."""
        self.stop(wait=control.should_log or control.should_save or state.global_step >= state.max_steps)

    def count(self, tensors: Mapping[str, Tensor]) -> None:
        """Count the tokens of a batch that is still in the memory of the host."""
        self._tokens += sum(int(tensors[name].sum()) for name in self._marks if name in tensors)

    def read(self) -> dict[str, float]:
        """Return the tokens a second of all processes, and begin to count again."""
        tokens, seconds = torch.tensor(self._tokens, dtype=torch.float64), self._seconds
        self._tokens, self._seconds = 0, 0.0
        if not self._marks or seconds <= 0:
            return {}
        if world_size() > 1:
            tokens = tokens.to("cuda" if dist.get_backend() == "nccl" else "cpu")
            dist.all_reduce(tokens)
        return {TOKENS_PER_SECOND: round(float(tokens) / seconds, 1)}


def mean_metric(log: Sequence[Mapping[str, Any]], metric: str) -> float:
    """Return the mean of a metric over all steps; each log entry has the mean since the entry before."""
    steps = np.diff([0, *(entry["step"] for entry in log)])
    return float(np.average([entry[metric] for entry in log], weights=steps))
