"""Validation on dev queries while a retriever is fine-tuned: keep the best weights, and stop early.

`validation.jsonl` in the stage's folder has one line per validation: `{"step": 500, "RR@10": 0.42}`. The best weights
are kept beside the checkpoints as `best-STEP.safetensors`. A resumed training ends with the same weights as an
uninterrupted one, and validation that only measures (keep_best off, no patience) does not change the weights. With
several processes, the first one measures and decides for all whether to stop.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from drkit.core import processes
from drkit.core.files import CHECKPOINTS, replacing
from drkit.data.store import TokenStore
from drkit.errors import DrkitError
from drkit.evaluate import check_measures
from drkit.train.probes import ProbeLog, evaluating
from drkit.train.retrieval_probe import RetrievalProbe, retrieval_probe

if TYPE_CHECKING:
    from torch import nn

    from drkit.core.progress import Progress
    from drkit.data.tables import StoredCollection
    from drkit.recipe.schema import Validation
    from drkit.search import AnyEncoder

FILE = "validation.jsonl"
Record = Mapping[str, float]


class ValidationCallback(TrainerCallback):  # type: ignore[misc]
    """Validates at every multiple of `settings.every`, and after the last step.

    module: the bi-encoder in training; encoder: encodes queries and passages with its weights. task: the queries and
    passages to search (`validation_task`); passages: the tokens of the corpus. folder: the stage's folder, for
    `validation.jsonl`. On a tie, the earlier weights stay the best.

    Raises DrkitError if the measure does not exist.
    """

    def __init__(
        self,
        module: nn.Module,
        encoder: AnyEncoder,
        task: RetrievalProbe,
        passages: TokenStore,
        settings: Validation,
        *,
        folder: Path,
        progress: Progress,
    ) -> None:
        check_measures([settings.measure])
        self._module, self._encoder, self._task, self._passages = module, encoder, task, passages
        self._settings, self._progress = settings, progress
        self._log = ProbeLog(folder, FILE)
        self._best = BestWeights(folder / CHECKPOINTS)

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Resume the log of an earlier attempt, up to the step that training resumes from."""
        if args.fsdp or args.deepspeed:
            raise DrkitError(
                "validation does not support sharded weights (FSDP, DeepSpeed); set finetune.validation.every=0"
            )
        if state.is_world_process_zero:
            self._log.resume(state.global_step)
            self._best.resume(self.best())
            task = self._task
            self._progress.note(
                f"validating on {len(task.queries):,} {task.split} queries over {len(task.indices):,} passages"
            )

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """If validation is due: measure, save the weights if they are the best so far, and stop if patience is over."""
        step = state.global_step
        if step % self._settings.every and step < state.max_steps:
            return
        if state.is_world_process_zero:
            self._validate(step)
        stop = processes.broadcast(self._patience_is_over())
        if stop and step < state.max_steps:
            control.should_training_stop = True
            control.should_save = False  # when resuming from here, the Trainer would take one more step

    def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Keep the current best weights: training may resume from this checkpoint."""
        if state.is_world_process_zero:
            self._best.checkpointed(self.best())

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Load the best weights into the module if `keep_best` is set."""
        best = self.best()
        if state.is_world_process_zero and self._settings.keep_best and best is not None and best < state.global_step:
            self._best.load(self._module, best)
            self._progress.note(f"keeping the weights of step {best:,} of {state.global_step:,}")

    def best(self) -> int | None:
        """Return the step of the best validation so far, the first of equal ones; None before the first."""
        return best_step(self._log.records, self._settings.measure)

    def result(self) -> dict[str, Any]:
        """Return the measure, its best value, the step of that value and the last validated step, for a manifest."""
        best = self.best()
        if best is None:
            return {}
        found = {int(record["step"]): record[self._settings.measure] for record in self._log.records}
        return {
            "validation": {"measure": self._settings.measure, "best": found[best], "step": best, "last": max(found)}
        }

    def _validate(self, step: int) -> None:
        if self._log.has(step):
            return
        before = self.best()
        with evaluating(self._module):
            value = self._task.measure(self._encoder, self._passages, self._settings.measure)
        record = {"step": step, self._settings.measure: float(f"{value:.6g}")}
        if self._settings.keep_best and best_step([*self._log.records, record], self._settings.measure) == step:
            self._best.save(self._module, step, before)  # before its line in the log
        self._log.add(record)
        self._progress.note(f"validation @ {step:,}: {self._settings.measure} {value:.3f}")

    def _patience_is_over(self) -> bool:
        since_best = [record for record in self._log.records if record["step"] > (self.best() or 0)]
        return bool(self._settings.patience) and len(since_best) >= self._settings.patience


class BestWeights:
    """The best weights so far, and the best weights at the time of the newest checkpoint.

    An interrupted training resumes from that checkpoint, whose best weights must still exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: int | None = None  # the best step at the newest checkpoint

    def path(self, step: int) -> Path:
        """Return the file of the weights of a step."""
        return self._folder / f"best-{step}.safetensors"

    def resume(self, best: int | None) -> None:
        """Start or resume with `best` as the best step, and remove the weights of all other steps."""
        self._kept = best
        self._remove_others(best)

    def save(self, module: nn.Module, step: int, before: int | None) -> None:
        """Write the weights of a step atomically, and remove those of `before` unless a checkpoint needs them."""
        from safetensors.torch import save_model

        with replacing(self.path(step)) as temporary:
            save_model(module, str(temporary), metadata={"step": str(step)})
        if before is not None and before != self._kept:
            self.path(before).unlink(missing_ok=True)

    def checkpointed(self, best: int | None) -> None:
        """Note that there is a new checkpoint, with `best` as the best step, and remove all other weights."""
        self._kept = best
        self._remove_others(best)

    def load(self, module: nn.Module, step: int) -> None:
        """Load the weights of a step into the module. Raises DrkitError if the file is missing."""
        from safetensors.torch import load_model

        if not self.path(step).is_file():
            raise DrkitError(
                f"the best weights so far are missing ({self.path(step)}). Delete {self._folder.parent} and run the "
                f"stage again."
            )
        load_model(module, str(self.path(step)))

    def _remove_others(self, best: int | None) -> None:
        for path in self._folder.glob("best-*.safetensors"):
            if best is None or path != self.path(best):
                path.unlink(missing_ok=True)


def validation_task(
    collection: StoredCollection, settings: Validation, *, seed: int, exclude_self: bool
) -> RetrievalProbe:
    """Return the dev queries to validate on, with the passages to search.

    exclude_self: a passage with the query's own id is not a hit. Raises DrkitError without judged dev queries.
    """
    found = retrieval_probe(collection, settings, seed=seed, splits=("dev",))
    if found is None:
        raise DrkitError(
            f"validation needs judged dev queries, but the collection has none (its splits: "
            f"{', '.join(collection.splits())}). Add some, or turn validation off: --set finetune.validation.every=0"
        )
    return found.excluding_self(collection) if exclude_self else found


def best_step(records: Sequence[Record], measure: str) -> int | None:
    """Return the step with the highest value, the first of equal ones; None without records.

    >>> best_step([{"step": 2, "RR@10": 0.3}, {"step": 4, "RR@10": 0.5}, {"step": 6, "RR@10": 0.5}], "RR@10")
    4
    """
    best = max(records, key=lambda record: (record[measure], -record["step"]), default=None)
    return None if best is None else int(best["step"])


def read_validations(folder: Path) -> list[Record]:
    """Read the validations of a stage's folder, ordered by step; empty if the file is missing."""
    path = folder / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
