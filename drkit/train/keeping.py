"""Keep the checkpoints of some steps of a training, beside its last one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from drkit.core.files import replacing_folder, sync
from drkit.errors import DrkitError


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
                f"cannot keep the checkpoint of step {last:,}: the training has {state.max_steps:,} steps. Keep "
                f"earlier ones, or train longer @ {self._setting}"
            )

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Write the checkpoint of a step that is kept."""
        if state.global_step in self._folders and state.is_world_process_zero:
            with replacing_folder(self._folders[state.global_step]) as folder:
                self._save(folder)
                for path in sorted(folder.rglob("*")):
                    sync(path)
