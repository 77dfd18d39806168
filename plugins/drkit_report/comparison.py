"""Several runs side by side: how their recipes differ, and means over seeds; curves of the systems of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from attrs import frozen

from drkit.charts import Line, Panel
from drkit.commands.records import RunRecord
from drkit.core.files import json_text
from drkit.data.splits import PSEUDO
from drkit.evaluate.names import AS_IT_IS, INITIAL
from drkit.recipe.schema import LABELS_ONLY, MAIN, PRETRAINED, Recipe
from drkit.recipe.toml import plain
from drkit.runs.stage import lasting_settings
from drkit_report.charts import Chart

_SEED = "seed"
_TRAINED = "training_queries"  # in the manifest of a fine-tuning
_ROUNDS = "finetune.rounds"
_SHOWN = 8  # settings that get a column
# Lines of curves.
_WITH, _WITH_PSEUDO, _WITHOUT = "pre-trained", "with pseudo-queries", "without pre-training"
_FINETUNED = "fine-tuned"


@frozen
class RecipeGroup:
    """Runs whose recipes are the same except for the seed.

    differences: the values of the settings in which the groups differ. values: per measure, the mean over runs and its
    standard deviation (of a single run: only its value).
    """

    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    differences: tuple[str, ...]
    values: tuple[str, ...]


@frozen
class Comparison:
    """The table of all runs; more: settings that differ, too, but got no column, with the value of each group."""

    measures: tuple[str, ...]
    settings: tuple[str, ...]
    groups: tuple[RecipeGroup, ...]
    more: tuple[tuple[str, tuple[str, ...]], ...] = ()


def compare_runs(runs: Sequence[RunRecord], shown: Sequence[RunRecord]) -> Comparison:
    """Group runs by recipe, and compare a retriever of each that has been evaluated.

    shown: the same runs as they are `published`.
    """
    tables, texts = [_settings_by_path(run) for run in runs], {run.name: _settings_by_path(run) for run in shown}
    names = _differing_settings(tables)
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for run, table in zip(runs, tables, strict=True):
        groups.setdefault(tuple(_format_setting(table, name) for name in names), []).append(run)
    measures = _common_measures(runs)
    columns = names[:_SHOWN]
    made = [
        RecipeGroup(
            runs=tuple(run.name for run in members),
            seeds=tuple(run.recipe.seed for run in members),
            differences=tuple(_format_setting(texts[members[0].name], name) for name in columns),
            values=tuple(_format_means(members, measure) for measure in measures),
        )
        for members in groups.values()
    ]
    shown_tables = [texts[members[0].name] for members in groups.values()]
    more = tuple((name, tuple(_format_setting(table, name) for table in shown_tables)) for name in names[_SHOWN:])
    settings = tuple(map(_heading_of, columns))
    return Comparison(measures, settings, tuple(made), more)


def _heading_of(name: str) -> str:
    """Return a setting as a heading: the slot of a part, or the path without the table that most settings are in.

    >>> _heading_of("pretrain.decoders.main.masker.use"), _heading_of("finetune.learning_rate")
    ('masker', 'finetune.learning_rate')
    """
    slot = name.removesuffix(".use")
    return name if slot == name else slot.removeprefix(f"pretrain.decoders.{MAIN}.").removeprefix("pretrain.")


def _settings_by_path(run: RunRecord) -> dict[str, Any]:
    """Return the settings that affect a run's results, by path; those of rounds by the round's name."""
    left_out = ("name", _SEED, _ROUNDS)
    found = {name: value for name, value in lasting_settings(run.recipe).items() if name not in left_out}
    for one in run.recipe.finetune.rounds if run.recipe.finetune else ():
        table = plain(one)
        table["miners"] = " \u2192 ".join(miner.use for miner in one.miners)
        found |= {f"{_ROUNDS}.{one.name}.{name}": value for name, value in table.items() if name != "name"}
    return found


def _differing_settings(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that differ, parts first; the settings of a part that is replaced are not listed."""
    names = dict.fromkeys(name for table in tables for name in table)
    differing = [name for name in names if len({_format_setting(table, name) for table in tables}) > 1]
    replaced = [name.removesuffix("use") for name in differing if name.endswith(".use")]
    kept = [n for n in differing if n.endswith(".use") or not any(n.startswith(prefix) for prefix in replaced)]
    return sorted(kept, key=lambda name: not name.endswith(".use"))


def _format_setting(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if value is None:
        return "\u2013"
    return value if isinstance(value, str) else json_text(value).strip()


def _common_measures(runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the measures that all evaluated runs have."""
    evaluated = [run.results.measures for run in runs if run.results is not None]
    return tuple(m for m in evaluated[0] if all(m in others for others in evaluated)) if evaluated else ()


def _format_means(runs: Sequence[RunRecord], measure: str) -> str:
    """Format the mean over runs of their compared systems, and its standard deviation, if there are several."""
    means = [run.scores[run.compared].mean(measure) for run in runs if run.results is not None]
    if not means:
        return "not evaluated"
    return f"{means[0]:.3f}" if len(means) == 1 else f"{mean(means):.3f} \u00b1 {stdev(means):.3f}"


def learning_curve(recipe: Recipe) -> dict[str, str]:
    """Return the line of each system in a learning curve, by system; empty unless rounds differ in labelled queries."""
    rounds = recipe.finetune.rounds if recipe.finetune else ()
    judged = [one for one in rounds if one.pairs != PSEUDO]
    if len({one.queries for one in judged}) < 2:
        return {}
    unlabelled = [one.name for one in rounds if one.pairs == PSEUDO]
    name = _WITH_PSEUDO if unlabelled else _WITH
    lines = {INITIAL: _WITHOUT, AS_IT_IS: _WITHOUT, **dict.fromkeys(unlabelled or [PRETRAINED], name)}
    return lines | {one.name: _WITHOUT if one.start == INITIAL else name for one in judged}


def steps_before(recipe: Recipe) -> dict[str, dict[str, int | None]]:
    """Return the steps of pre-training before each system (None: all), by line of a chart; empty if none are kept."""
    kept = recipe.pretrain.kept if recipe.pretrain else {}
    rounds = recipe.finetune.rounds if recipe.finetune else ()
    if not kept:
        return {}
    starts = {INITIAL: 0, **kept, PRETRAINED: None}
    tuned = {one.name: starts[one.start] for one in rounds if one.start in starts}
    return {_FINETUNED: {LABELS_ONLY: 0, **tuned}, _WITH: {INITIAL: 0, AS_IT_IS: 0, **kept, PRETRAINED: None}}


def curves_of_systems(run: RunRecord) -> Iterator[Chart]:
    """Yield the first measure of a run's systems over their labelled queries, and over their steps of pre-training."""
    if run.results is None:
        return
    measure, points = run.results.measures[0], dict[str, list[tuple[float, float]]]()
    judged = {one.name for one in run.recipe.finetune.rounds if one.pairs != PSEUDO} if run.recipe.finetune else set()
    for system, line in learning_curve(run.recipe).items():
        if system in run.scores:
            stage = run.manifests.get(run.results.runs[system][0])
            queries = int(stage.metrics.get(_TRAINED, 0)) if stage is not None and system in judged else 0
            points.setdefault(line, []).append((queries, run.scores[system].mean(measure)))
    if points:
        lines = [Line(name, sorted(found)) for name, found in points.items()]
        panel = Panel(f"{measure} over labelled queries", measure, lines, floor=True, x="labelled queries", log=True)
        yield Chart(panel, "Means over draws; 0: before fine-tuning.", is_wide=True)
    if lines := _lines_of_steps(run, measure):
        x = "steps of pre-training"
        panel = Panel(f"{measure} over {x}", measure, lines, floor=True, x=x)
        yield Chart(panel, "Retrievers from kept checkpoints; 0: without pre-training.", is_wide=True)


def _lines_of_steps(run: RunRecord, measure: str) -> list[Line]:
    """Return the measure of systems over the steps of pre-training before them, of lines with several points."""
    trained = run.manifests.get(PRETRAINED)
    last = int(trained.metrics["steps"]) if trained is not None else 0
    lines = []
    for name, steps in steps_before(run.recipe).items():
        reached = {system: last if step is None else step for system, step in steps.items() if system in run.scores}
        lines.append(Line(name, sorted((step, run.scores[system].mean(measure)) for system, step in reached.items())))
    return [line for line in lines if len(line.points) > 1]
