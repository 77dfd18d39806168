"""What a run folder records: its recipe, the manifests of finished stages, the stages to come, and its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import cattrs
from attrs import evolve, field, frozen

from drkit.commands.evaluation import System, find_systems
from drkit.core.checksums import check_unchanged
from drkit.core.files import read_json, read_log
from drkit.core.registry import Installed, Registry
from drkit.data.corpus import StoredCollection, open_collection
from drkit.data.splits import PSEUDO
from drkit.errors import DrkitError
from drkit.evaluate.measures import Scores, balanced, of_data_set
from drkit.evaluate.significance import mean_intervals
from drkit.evaluate.systems import comparison, verdict
from drkit.recipe.parts import all_parts
from drkit.recipe.schema import Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import plain, read_recipe, recipe_from_table, recipe_table, toml_value
from drkit.runs.manifest import Manifest, read_manifest
from drkit.runs.plan import plan
from drkit.runs.survey import survey
from drkit.runs.work import describe_encoder


@frozen
class Results:
    """How the systems of a run were evaluated; see `drkit.runs.stages.evaluation`.

    runs: the rankings behind each system, one per draw. compared: the system of the run's verdict. baseline: that
    which the others are tested against (None: the first, of a run that an earlier version evaluated).
    """

    split: str
    measures: tuple[str, ...]
    queries: int
    runs: Mapping[str, tuple[str, ...]]
    compared: str
    baseline: str | None = None
    exclude_self: bool = False


@frozen(slots=False)
class RunRecord:
    """A run as its folder records it.

    name: the folder's name. manifests: of the finished stages, by name, in the order they finished. missing: a line for
    each stage that is not finished. summaries: what each planned stage does, by name; trainings: the names of those
    that train a model. system: which one is compared with those of other runs, if it was chosen.
    """

    folder: Path
    recipe: Recipe
    manifests: Mapping[str, Manifest]
    missing: tuple[str, ...] = ()
    summaries: Mapping[str, str] = field(factory=dict)
    trainings: tuple[str, ...] = ()
    name: str = field(kw_only=True)
    system: str = field(default="", kw_only=True)

    @property
    def compared(self) -> str:
        """The system that is compared with those of other runs: `system`, or the system of the run's verdict."""
        return self.system or (self.results.compared if self.results else "")

    @cached_property
    def collection(self) -> StoredCollection | None:
        """The stored collection, or None if the run has not read it."""
        made = self.folder / "pseudo-queries" / PSEUDO
        pseudo = made if "pseudo-queries" in self.manifests and made.is_dir() else None
        return open_collection(self.folder / "collection", pseudo) if "collection" in self.manifests else None

    @cached_property
    def results(self) -> Results | None:
        """How the systems were evaluated, or None without a finished evaluation. Raises DrkitError if it is damaged."""
        if "evaluation" not in self.manifests:
            return None
        check_unchanged(self.folder / "evaluation")
        try:
            return cattrs.structure(self.manifests["evaluation"].metrics, Results)
        except (cattrs.BaseValidationError, AttributeError, TypeError, ValueError, KeyError):
            raise self._damaged("evaluation") from None

    @cached_property
    def verdict(self) -> list[str]:
        """What the run gained, in words, after a warning if its numbers mean little. Raises DrkitError if damaged."""
        try:
            metrics = self.manifests["evaluation"].metrics if self.results else {}
            return [text for text in (metrics.get("warning"), *(verdict(metrics) if metrics else ())) if text]
        except (AttributeError, TypeError, ValueError, KeyError):
            raise self._damaged("evaluation") from None

    @cached_property
    def scores(self) -> dict[str, Scores]:
        """What means and tests of every system are of: `measured`, `balanced` if there are several data sets."""
        return {name: balanced(scores, self.recipe.data_sets) for name, scores in self.measured.items()}

    def scores_of(self, data_set: str) -> dict[str, Scores]:
        """Return the values per query of every system for one of several data sets."""
        found = {name: of_data_set(scores, data_set) for name, scores in self.measured.items()}
        return {name: scores for name, scores in found.items() if scores.queries}

    @cached_property
    def measured(self) -> dict[str, Scores]:
        """Values per query of every system, in the order of the table. Raises DrkitError if they are damaged."""
        if self.results is None:
            return {}
        stored = read_json(self.folder / "evaluation" / "scores.json", f"repeat it with `drkit run {self.folder}`")
        try:
            values = cattrs.structure(stored, dict[str, dict[str, dict[str, float]]])
            return {name: Scores({m: values[name][m] for m in self.results.measures}) for name in self.results.runs}
        except (cattrs.BaseValidationError, AttributeError, TypeError, ValueError, KeyError):
            raise self._damaged("evaluation") from None

    def table(self, data_set: str | None = None) -> list[dict[str, Any]]:
        """Return a row for each system and measure; `pandas.DataFrame(rows)` takes them.

        A row has `system`, `measure`, `mean`, `low` and `high` (the 95 % bootstrap interval over queries), and, except
        for the baseline, `p` of a paired two-tailed t-test against it. No rows without an evaluation. data_set: whose
        queries are evaluated, in a run with several; None: the average over data sets.
        """
        scores = self.scores if data_set is None else self.scores_of(data_set)
        rows = comparison(list(scores.items()), self.results.baseline) if self.results and scores else []
        found = []
        for measure in self.results.measures if self.results and scores else ():
            intervals = mean_intervals(list(scores.values()), measure)
            for row, (low, high) in zip(rows, intervals, strict=True):
                tested = {"p": row.tests[measure].p} if measure in row.tests else {}
                value: dict[str, Any] = {"system": row.system, "measure": measure, "mean": row.values[measure]}
                found.append({**value, "low": low, "high": high, **tested})
        return found

    @cached_property
    def systems(self) -> dict[str, System]:
        """The rankings of every system, by its name in the run."""
        return {system.name: system for system in find_systems([str(self.folder)])} if self.results else {}

    def log(self, stage: str, file: str) -> list[dict[str, float]]:
        """Return the lines of a log (`log.jsonl`, `probes.jsonl` ..) of a stage; none if it has no such log.

        Raises DrkitError if it has changed since it was written, or a line is not JSON.
        """
        check_unchanged(self.folder / stage / file)
        try:
            return read_log(self.folder / stage / file)
        except ValueError:
            raise self._damaged(stage) from None

    def _damaged(self, stage: str) -> DrkitError:
        return DrkitError(
            f"{self.folder / stage} is damaged; remove that folder and repeat the stage with `drkit run {self.folder}`"
        )


def open_run(folder: Path, parts: Installed) -> RunRecord:
    """Open a run that may be unfinished.

    Raises DrkitError if the folder is not a run, or no stage of it is finished.
    """
    if not (folder / RECIPE).is_file():
        raise DrkitError(f"{folder} is not a run (no {RECIPE}); give the folder of one, as `drkit compose` makes it")
    recipe = read_recipe(folder / RECIPE, parts.registry)
    found = {path.name: manifest for path in sorted(folder.iterdir()) if (manifest := read_manifest(path)) is not None}
    if not found:
        raise DrkitError(f"{folder} has no finished stage, so there is nothing to report; run `drkit run {folder}`")
    ordered = dict(sorted(found.items(), key=lambda item: item[1].finished))
    return RunRecord(folder, recipe, ordered, *_read_plan(folder, recipe, parts), name=folder.resolve().name)


def _read_plan(
    folder: Path, recipe: Recipe, parts: Installed
) -> tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]:
    """Return a line for each stage that is not finished, the summary of every stage, and the names of trainings.

    If the plan cannot be made (files have moved), one line says so, and the stages are unknown.
    """
    try:
        stages = plan(recipe, parts.registry).stages
    except DrkitError as error:
        return (f"unknown, because the collection cannot be read again: {error}",), {}, ()
    found = survey(stages, folder)
    missing = tuple(f"{one.stage.name}: {one.summary}" for one in found if not one.is_finished)
    trainings = tuple(stage.name for stage in stages if stage.is_training)
    return missing, {stage.name: stage.summary for stage in stages}, trainings


def describe_recipe(run: RunRecord, registry: Registry) -> list[tuple[str, str, str]]:
    """Return rows of what a run composed: encoder, parts, trainings; a row has a label, a choice, and what it means."""
    encoder = run.recipe.encoder
    rows = [("encoder", f"{encoder.pooling.use} pooling", describe_encoder(encoder))]
    for part in all_parts(run.recipe, registry):
        settings = {name: value for name, value in plain(part.config).items() if value not in (None, "", [], {})}
        about = [part.spec.summary, *(f"{name} = {toml_value(value)}" for name, value in settings.items())]
        rows.append((part.path or str(part.spec.kind), part.spec.name, "; ".join(about)))
    rows += [(name, run.summaries[name], "") for name in run.trainings]
    return list(dict.fromkeys(rows))


def collection_counts(run: RunRecord) -> list[tuple[str, int]]:
    """Return how many passages, queries and judgements a run has read, as (what, number)."""
    if "collection" not in run.manifests:
        return []
    found = run.manifests["collection"].metrics
    return [
        ("passages", int(found["passages"])),
        *((f"{split} {what}", int(n)) for what in ("queries", "judgements") for split, n in found[what].items()),
    ]


def hide_local_paths(run: RunRecord, registry: Registry) -> RunRecord:
    """Return a record whose recipe and messages have the names of local files and folders instead of their paths.

    Reports and cards are published, and the folders of their author are not.
    """
    names = {str(run.folder.resolve()): run.folder.resolve().name}

    def shorten(value: Any) -> Any:
        """Return plain data without local paths, and remember these."""
        if isinstance(value, Mapping):
            return {key: shorten(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [shorten(item) for item in value]
        if isinstance(value, str) and (path := _local_path_in(value)):
            names[path] = Path(path).name
            return value.replace(path, names[path])
        return value

    def without_paths(text: str) -> str:
        for path in sorted(names, key=len, reverse=True):
            text = text.replace(path, names[path])
        return text

    recipe = recipe_from_table(shorten(recipe_table(run.recipe)), registry)
    summaries = {name: without_paths(text) for name, text in run.summaries.items()}
    return evolve(run, recipe=recipe, missing=tuple(map(without_paths, run.missing)), summaries=summaries)


def _local_path_in(text: str) -> str:
    """Return the local path that a setting is or that follows its first colon (`file:PATH`); empty without one."""
    for path in (text, text.partition(":")[2]):
        if "/" in path and Path(path).name and (path[0] in "/~." or Path(path).exists()):
            return path
    return ""


def _queries_of(run: RunRecord, split: str) -> tuple[str, ...]:
    """Return what decides the queries of a split of a run: the content of the stages that hold them."""
    stages = ("collection", *(("pseudo-queries",) if split == PSEUDO else ()))
    return tuple(run.manifests[name].content() for name in stages if name in run.manifests)


def is_comparable(runs: Sequence[RunRecord]) -> bool:
    """Return whether all runs were evaluated on the same queries of the same collection, by the same measures."""
    states = [
        (_queries_of(run, run.results.split), run.results.split, run.results.measures, run.results.exclude_self)
        for run in runs
        if run.results is not None and "collection" in run.manifests
    ]
    return len(states) == len(runs) and len(set(states)) == 1
