"""What a training does between its steps: report progress, complete and keep checkpoints, and save on Ctrl-C."""

from __future__ import annotations

import ctypes
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, set_seed

from drkit.core import processes
from drkit.core.files import make_folder, read_json, replacing_folder, sync, write_json
from drkit.core.progress import Progress
from drkit.core.quantities import counted
from drkit.errors import DrkitError
from drkit.train.logs import TOKENS_PER_SECOND, first_not_finite
from drkit.train.resuming import CALLBACKS, complete_checkpoint

_TRIM_STEPS = 50


class ReportProgress(TrainerCallback):  # type: ignore[misc]
    """Reports progress, and stops a training whose loss is not finite."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last: dict[str, float] = {}

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Report a step, with the last logged loss and speed."""
        self._progress.advance(state.global_step, state.max_steps, "steps", **self._last)

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Keep what was logged for the next steps. Raises DrkitError if the loss is not finite."""
        if logs and "loss" in logs:
            loss = float(logs["loss"])
            if not math.isfinite(loss):
                raise DrkitError(
                    f"the loss is {loss} at step {state.global_step}: lower learning_rate, or raise warmup_steps"
                    f"{first_not_finite(logs)}"
                )
            speed = {"tokens/s": logs[TOKENS_PER_SECOND]} if TOKENS_PER_SECOND in logs else {}
            self._last = {"loss": loss, **speed}


class CompleteCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Completes each checkpoint once all of it is written. kept: the number of checkpoints that remain."""

    def __init__(self, kept: int) -> None:
        self._kept = kept

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Wait for the files of all processes, then complete the checkpoint."""
        processes.barrier()
        if state.is_world_process_zero:
            complete_checkpoint(Path(args.output_dir, f"checkpoint-{state.global_step}"), kept=self._kept)
        processes.barrier()


class RecordProcesses(TrainerCallback):  # type: ignore[misc]
    """Records the number of processes that train, in a file that is resumed with its checkpoints.

    folder: that of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / CALLBACKS / "processes.json"

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Record the processes that train from here on.

        A checkpoint has no random states for a new number of processes. They are seeded by the step: the dropout of the
        first steps would come again otherwise.
        """
        found = self.numbers()
        if [*found.values()][-1:] == [processes.process_count()]:
            return
        processes.barrier()  # all have read the file
        if found:
            set_seed(args.seed + state.global_step)
        if state.is_world_process_zero:
            make_folder(self._file.parent)
            write_json(self._file, {**found, str(state.global_step + 1): processes.process_count()})

    def numbers(self) -> dict[str, int]:
        """Return the number of processes by the first step that it trained, in order."""
        return dict(read_json(self._file, "train again")) if self._file.is_file() else {}


class KeepCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Writes what `save` saves after some steps, into the folder of each step.

    A resumed training has the folders of earlier steps already, and writes those of later ones. setting: the path of
    the steps in the recipe, for errors.
    """

    def __init__(self, folders: Mapping[int, Path], save: Callable[[Path], None], setting: str) -> None:
        self._folders, self._save, self._setting = folders, save, setting

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Raise DrkitError for a step that the training does not reach."""
        last = max(self._folders, default=0)
        if last > state.max_steps:
            raise DrkitError(
                f"cannot keep the checkpoint of step {last:,}: the training has "
                f"{counted(state.max_steps, 'step')}. Keep "
                f"earlier ones, or train longer @ {self._setting}"
            )

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Write the checkpoint of a step that is kept."""
        if state.global_step in self._folders and state.is_world_process_zero:
            with replacing_folder(self._folders[state.global_step]) as folder:
                self._save(folder)
                for path in sorted(folder.rglob("*")):
                    sync(path)


class SaveOnInterrupt(TrainerCallback):  # type: ignore[misc]
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
        if signal.getsignal(signal.SIGINT) is not default or not is_main or processes.process_count() > 1:
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
        """Ask for a checkpoint."""
        if self._is_asked and control.should_training_stop and state.global_step < state.max_steps:
            raise KeyboardInterrupt  # stopped early: a checkpoint here would be trained on from
        control.should_save = control.should_save or self._is_asked

    def on_save(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Raise KeyboardInterrupt: the checkpoint is complete."""
        if self._is_asked:
            raise KeyboardInterrupt


class TrimHeap(TrainerCallback):  # type: ignore[misc]
    """Returns freed memory to the operating system every 50 steps, so that memory stays flat at no noticeable cost."""

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc only

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Trim the heap of glibc."""
        if self._trim is not None and state.global_step % _TRIM_STEPS == 0:
            self._trim(0)
