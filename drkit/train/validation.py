"""Measure a module while it is trained: keep the best weights, and stop early.

Fine-tuning is validated on dev queries (`DevQueries`), pre-training is only probed (`drkit.train.probes`). The stage's
folder has one line per measurement: `{"step": 500, "RR@10": 0.42}` in `validation.jsonl`. The best weights are kept
with the checkpoints as `best-STEP.safetensors`, and the values of each query as `values.json`. The plain choice are the
weights at the end of training: the best ones replace them only if they gain more than one standard error
(`drkit.evaluate.tuning.choose_plainly`). A resumed training ends with the same weights as an uninterrupted one, and
measuring alone (keep_best off, no patience) does not change the weights. With several processes, the first one measures
and decides for all whether to stop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from attrs import frozen
from torch import nn
from transformers import TrainerCallback

from drkit.core import processes
from drkit.core.files import CHECKPOINTS, VALIDATION, read_json, write_json
from drkit.core.progress import Progress
from drkit.core.quantities import counted
from drkit.data.corpus import StoredCollection
from drkit.data.store import TokenStore
from drkit.errors import DrkitError
from drkit.evaluate import check_measures
from drkit.evaluate.tuning import PlainChoice, choose_plainly
from drkit.recipe.training import Validation
from drkit.search import AnyEncoder
from drkit.train.lora import load_trained, save_trained
from drkit.train.probes import Measured, ProbeLog, Probes, evaluating
from drkit.train.resuming import CALLBACKS
from drkit.train.retrieval_probe import RetrievalProbe, retrieval_probe

_Record = Mapping[str, float]


@frozen(eq=False)
class DevQueries:
    """What validation measures, on dev queries.

    module: the bi-encoder in training; encoder: encodes queries and passages with its weights. task: the queries and
    passages to search (`validation_task`); passages: the tokens of the corpus; decides: the measure, by its ir_measures
    name.

    Raises DrkitError if the measure does not exist.
    """

    module: nn.Module
    encoder: AnyEncoder
    task: RetrievalProbe
    passages: TokenStore
    decides: str

    setting: ClassVar[str] = "finetune.validation"
    file: ClassVar[str] = VALIDATION
    measures_start: ClassVar[bool] = False

    def __attrs_post_init__(self) -> None:
        check_measures([self.decides])

    def measure(self) -> Measured:
        """Return the measure by its name, and its value for each query."""
        with evaluating(self.module):
            scores = self.task.scores(self.encoder, self.passages, self.decides)
        mean = float(f"{scores.mean(self.decides):.6g}")
        return Measured({self.decides: mean}, scores.per_query[self.decides])

    def describe(self) -> str:
        """Return in one line what is searched."""
        task = self.task
        return (
            f"validating on {counted(len(task.queries), f'{task.split} query')} over "
            f"{counted(len(task.indices), 'passage')}"
        )

    def line(self, record: _Record) -> str:
        """Format a validation in one line."""
        return f"validation @ {record['step']:,}: {self.decides} {record[self.decides]:.3f}"


# What measures the current weights of a module in training, and changes neither them nor torch's random state.
Measurement = DevQueries | Probes


class ValidationCallback(TrainerCallback):  # type: ignore[misc]
    """Measures at every multiple of `settings.every`, and after the last step.

    module: in training, measured by `measurement`. folder: the stage's folder, for the log and the best weights. also:
    other steps that are measured. On a tie, the earlier weights stay the best.
    """

    def __init__(
        self,
        module: nn.Module,
        measurement: Measurement,
        settings: Validation,
        *,
        folder: Path,
        progress: Progress,
        also: Collection[int] = (),
    ) -> None:
        self._also = also
        self._module, self._measurement, self._settings, self._progress = module, measurement, settings, progress
        self._log = ProbeLog(folder, measurement.file)
        self._best = BestWeights(folder / CHECKPOINTS / CALLBACKS)
        self._values = QueryValues(folder / CHECKPOINTS / CALLBACKS)
        self._choice: PlainChoice[int] | None = None

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Resume the log of an earlier attempt from the checkpoint that training resumes from."""
        measurement, step = self._measurement, state.global_step
        if state.is_world_process_zero:
            self._log.resume()
            self._progress.note(measurement.describe())
            if measurement.measures_start and step % self._settings.every == 0:
                self._validate(step)

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """If a measurement is due: measure, keep the weights if they are the best so far, stop if patience is over."""
        step = state.global_step
        if step % self._settings.every and step < state.max_steps and step not in self._also:
            return
        if state.is_world_process_zero:
            self._validate(step)
        if self._settings.patience and processes.broadcast(self._patience_is_over()) and step < state.max_steps:
            control.should_training_stop = True
            control.should_save = False  # when resuming from here, the Trainer would take one more step

    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Load the best weights into the module if `keep_best` is set and their gain over the last ones is shown."""
        best, step = self.best(), state.global_step
        if not state.is_world_process_zero or best is None:
            return
        if step < state.max_steps:
            self._progress.note(f"stopped at step {step:,} of {state.max_steps:,}: no gain since step {best:,}")
        if self._settings.keep_best and best < step:
            values = self._values.read()
            self._choice = choose_plainly({one: values[one] for one in (step, best)})
            if self._choice.chosen == best:
                self._best.load(self._module, best)
            self._progress.note(describe_kept(self._choice, self._measurement.decides))

    def best(self) -> int | None:
        """Return the step of the best measurement so far, the first of equal ones; None before the first."""
        return best_step(self._log.records, self._measurement.decides)

    def result(self) -> dict[str, Any]:
        """Return the measure, its best value, the step of that value and the last measured step, for a manifest.

        Where the best weights could replace the last ones, also the step of those `kept`, the `gain` of the best ones
        over the last, and the standard `error` of this difference.
        """
        best, measure = self.best(), self._measurement.decides
        if best is None:
            return {}
        found = {int(record["step"]): record[measure] for record in self._log.records}
        name = self._measurement.setting.rpartition(".")[2]
        kept = {"kept": self._choice.chosen, **self._choice.facts()} if self._choice else {}
        return {name: {"measure": measure, "best": found[best], "step": best, "last": max(found), **kept}}

    def _validate(self, step: int) -> None:
        if self._log.has(step):
            return
        measured = self._measurement.measure()
        record = {"step": step, **measured.metrics}
        best = best_step([*self._log.records, record], self._measurement.decides)
        if self._settings.keep_best and best is not None:  # before the line in the log
            self._values.keep(best, step, measured.values)
            if best == step:
                self._best.save(self._module, step)
        self._log.add(record)
        self._progress.note(self._measurement.line(record))

    def _patience_is_over(self) -> bool:
        since_best = [record for record in self._log.records if record["step"] > (self.best() or 0)]
        return len(since_best) >= self._settings.patience


class QueryValues:
    """The values of each query for the best and for the last weights, in a file that every checkpoint contains."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "values.json"

    def read(self) -> dict[int, Mapping[str, float]]:
        """Return the values of each query by step."""
        stored = read_json(self._path, f"delete {self._path.parents[1]} and run the stage again")
        return {int(step): values for step, values in stored.items()}

    def keep(self, best: int, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step, and keep those of the best one alone."""
        kept = {number: found for number, found in self.read().items() if number == best} if best != step else {}
        write_json(self._path, {**kept, step: values})


def describe_kept(choice: PlainChoice[int], measure: str) -> str:
    """Say which weights a training ends with, and why.

    >>> print(describe_kept(PlainChoice(12, 12, 6, gain=0.02, error=0.03, queries=9), "RR@10"))
    keeping the last weights: those of step 6 gain 0.020 RR@10 on 9 queries, within one standard error, 0.030
    """
    gain, error, asked = f"{choice.gain:.3f} {measure}", f"{choice.error:.3f}", counted(choice.queries, "query")
    if choice.chosen == choice.plain:
        return (
            f"keeping the last weights: those of step {choice.best:,} gain {gain} on {asked}, within one standard "
            f"error, {error}"
        )
    return (
        f"keeping the weights of step {choice.best:,} of {choice.plain:,}: they gain {gain} on {asked}, more than one "
        f"standard error, {error}"
    )


class BestWeights:
    """The best weights so far, in a folder that every checkpoint contains (`drkit.train.resuming.CALLBACKS`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, step: int) -> Path:
        """Return the file of the weights of a step."""
        return self._folder / f"best-{step}.safetensors"

    def save(self, module: nn.Module, step: int) -> None:
        """Write the weights of a step atomically, then remove those of other steps."""
        save_trained(module, self.path(step), metadata={"step": str(step)})
        for path in self._folder.glob("best-*.safetensors"):
            if path != self.path(step):
                path.unlink()

    def load(self, module: nn.Module, step: int) -> None:
        """Load the weights of a step into the module. Raises DrkitError if the file is missing."""
        if not self.path(step).is_file():
            raise DrkitError(
                f"the best weights so far are missing ({self.path(step)}). Delete {self._folder.parents[1]} and run "
                f"the stage again."
            )
        load_trained(module, self.path(step))


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


def best_step(records: Sequence[_Record], measure: str) -> int | None:
    """Return the step with the highest value, the first of equal ones; None if no record has the measure.

    >>> best_step([{"step": 2, "RR@10": 0.3}, {"step": 4, "RR@10": 0.5}, {"step": 6, "RR@10": 0.5}], "RR@10")
    4
    """
    measured = [record for record in records if measure in record]
    best = max(measured, key=lambda record: (record[measure], -record["step"]), default=None)
    return None if best is None else int(best["step"])
