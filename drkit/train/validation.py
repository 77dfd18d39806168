"""Development queries, ranked while a retriever is fine-tuned: the best weights are kept, and no step is wasted.

`validation.jsonl` in the stage's folder has a line a validation: `{"step": 500, "RR@10": 0.42}`. The weights of the
best one wait beside the checkpoints as `best-STEP.safetensors`. A training that is resumed ends with the same weights
as one that was never cut off, and one that only watches (keep_best off, no patience) with the same as one without
validation. Of several processes the first measures, and the others learn from it whether to go on.
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
from drkit.train.probes import ProbeLog, undisturbed
from drkit.train.retrieval_probe import RetrievalProbe, retrieval_probe

if TYPE_CHECKING:
    from torch import nn

    from drkit.core.progress import Progress
    from drkit.data.tables import StoredCollection
    from drkit.recipe.schema import Validation
    from drkit.search import AnyEncoder

FILE = "validation.jsonl"
Record = Mapping[str, float]


def best_step(records: Sequence[Record], measure: str) -> int | None:
    """The step of the highest value, the first of equals.

    >>> best_step([{"step": 2, "RR@10": 0.3}, {"step": 4, "RR@10": 0.5}, {"step": 6, "RR@10": 0.5}], "RR@10")
    4
    """
    best = max(records, key=lambda record: (record[measure], -record["step"]), default=None)
    return None if best is None else int(best["step"])


def read_validations(folder: Path) -> list[Record]:
    """The validations of a stage's folder, by their steps; none where there is no file."""
    path = folder / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


class ValidationCallback(TrainerCallback):  # type: ignore[misc]
    """Validates at every multiple of `settings.every`, and after the last step.

    module: the bi-encoder in training; encoder: the same weights, as queries and passages are encoded with them. task:
    what is searched (`validation_task`); passages: the corpus' tokens. folder: of the stage, where `validation.jsonl`
    goes. A tie is no gain: the earlier weights stay the best.

    Raises DrkitError where the measure does not exist.
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
        """Take up what an earlier attempt measured up to the step that is resumed from."""
        if args.fsdp or args.deepspeed:
            raise DrkitError("validation needs the whole weights in one process; set finetune.validation.every=0")
        if state.is_world_process_zero:
            self._log.resume(state.global_step)
            self._best.resume(self.best())
            task = self._task
            self._progress.note(
                f"validating on {len(task.queries):,} {task.split} queries over {len(task.places):,} passages"
            )

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Where one is due: measure, keep the weights if they are the best so far, stop if nothing was gained."""
        step = state.global_step
        if step % self._settings.every and step < state.max_steps:
            return
        if state.is_world_process_zero:
            self._validate(step)
        stop = processes.broadcast(self._patience_is_over())
        if stop and step < state.max_steps:
            control.should_training_stop = True
            control.should_save = False  # resumed from here, the Trainer would take one more step

    def on_save(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """A checkpoint stands: it is what would be resumed from, with the best weights of this moment."""
        if state.is_world_process_zero:
            self._best.checkpointed(self.best())

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """End with the best weights, where the settings say so."""
        best = self.best()
        if state.is_world_process_zero and self._settings.keep_best and best is not None and best < state.global_step:
            self._best.load(self._module, best)
            self._progress.note(f"the weights of step {best:,} are kept, of {state.global_step:,}")

    def best(self) -> int | None:
        """The step of the best validation so far, the first of equals; None before any."""
        return best_step(self._log.records, self._settings.measure)

    def result(self) -> dict[str, Any]:
        """What a manifest says: measure, its best value, the step that had it, and the step that was validated last."""
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
        with undisturbed(self._module):
            value = self._task.measure(self._encoder, self._passages, self._settings.measure)
        record = {"step": step, self._settings.measure: float(f"{value:.6g}")}
        if self._settings.keep_best and best_step([*self._log.records, record], self._settings.measure) == step:
            self._best.save(self._module, step, before)  # before the line that says so
        self._log.add(record)
        self._progress.note(f"validation @ {step:,}: {self._settings.measure} {value:.3f}")

    def _patience_is_over(self) -> bool:
        waited = [record for record in self._log.records if record["step"] > (self.best() or 0)]
        return bool(self._settings.patience) and len(waited) >= self._settings.patience


class BestWeights:
    """Weights that may be wanted again: the best ones so far, and the best ones as of the newest checkpoint.

    A training that is cut off goes on from that checkpoint, whose best weights must still be there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: int | None = None  # as of the newest checkpoint

    def path(self, step: int) -> Path:
        """Where the weights of a step are."""
        return self._folder / f"best-{step}.safetensors"

    def resume(self, best: int | None) -> None:
        """Begin, or go on, with `best`; those of later steps are made again. Raises DrkitError where they are lost."""
        self._kept = best
        self._remove_others(best)

    def save(self, module: nn.Module, step: int, before: int | None) -> None:
        """Write the weights of a step, whole or not at all; those of `before` go, unless a checkpoint wants them."""
        from safetensors.torch import save_model

        with replacing(self.path(step)) as temporary:
            save_model(module, str(temporary), metadata={"step": str(step)})
        if before is not None and before != self._kept:
            self.path(before).unlink(missing_ok=True)

    def checkpointed(self, best: int | None) -> None:
        """A new checkpoint stands, and these are the best weights as of it."""
        self._kept = best
        self._remove_others(best)

    def load(self, module: nn.Module, step: int) -> None:
        """Put the weights of a step into the module. Raises DrkitError where they are gone."""
        from safetensors.torch import load_model

        if not self.path(step).is_file():
            raise DrkitError(
                f"{self.path(step)}, the best weights so far, are gone; delete {self._folder.parent} and run again"
            )
        load_model(module, str(self.path(step)))

    def _remove_others(self, best: int | None) -> None:
        for path in self._folder.glob("best-*.safetensors"):
            if best is None or path != self.path(best):
                path.unlink(missing_ok=True)


def validation_task(
    collection: StoredCollection, settings: Validation, *, seed: int, exclude_self: bool
) -> RetrievalProbe:
    """Return the development queries to rank, and what they are searched in.

    exclude_self: a passage with a query's own id is no hit. Raises DrkitError where there are no judged dev queries.
    """
    found = retrieval_probe(collection, settings, seed=seed, splits=("dev",))
    if found is None:
        raise DrkitError(
            f"validation needs judged dev queries, and the collection has none (its splits: "
            f"{', '.join(collection.splits())}); add some, or turn it off: --set finetune.validation.every=0"
        )
    return found.without_own(collection) if exclude_self else found
