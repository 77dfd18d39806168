"""Stage: the report of a run, with results and training curves, as `report.md` (`drkit report` writes a page)."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from drkit.core.files import LOG, TRAINING
from drkit.evaluate.names import AS_IT_IS, INITIAL
from drkit.recipe.schema import LABELS_ONLY, PRETRAINED, PSEUDO, Recipe
from drkit.runs.stage import TRUNCATED, PlanBuilder, StageOutput, StageSpec, from_recipe
from drkit.runs.stages.evaluation import EVALUATION
from drkit.runs.stages.finetune import FINETUNE
from drkit.runs.stages.pretrain import PRETRAIN
from drkit.runs.stages.reranker import TRAIN_RERANKER
from drkit.runs.stages.retriever import CHOICE, CHOOSE

WITH, WITH_PSEUDO, WITHOUT = "pre-trained", "with pseudo-queries", "without pre-training"
FINETUNED = "fine-tuned"
PROBES, VALIDATION = "probes.jsonl", "validation.jsonl"


@frozen
class ReportSettings:
    """The trainings to plot, each with inputs `RECORD/TRAINING`; title: the recipe's name.

    exported: in words which retriever the run exports, unless the input `choice` says so. curve: the line of a learning
    curve that each system belongs to, by system; empty without a curve. unlabelled: the systems that were trained on no
    labelled query. steps: the steps of pre-training before each system (None: all), by line of a chart; empty without
    kept checkpoints.
    """

    trainings: tuple[str, ...]
    exported: str
    curve: Mapping[str, str]
    unlabelled: tuple[str, ...]
    steps: Mapping[str, Mapping[str, int | None]]
    title: str = from_recipe("name", observes=True)


REPORT = StageSpec(
    name="report",
    version=8,
    settings=ReportSettings,
    run="drkit.runs.steps.report:write_report",
    inputs={
        "results": "the table of the evaluation",
        "choice": "the retriever that is exported, and why",
        "probes": "probes of pre-training",
        "log/*": "the log of a training",
        "training/*": "steps, loss and seconds of a training",
        "validation/*": "validations of a training",
        "truncated/*": "counts of truncated texts",
    },
    folders=("report",),
)


def plan_report(builder: PlanBuilder, exported: str) -> None:
    """Add the report, which reads the logs of the trainings and the results of the evaluation."""
    trainings = [name for name, stage in builder.stages.items() if stage.spec in (PRETRAIN, FINETUNE, TRAIN_RERANKER)]
    inputs = {"results": StageOutput("evaluation", "results.json")} if builder.has(EVALUATION) else {}
    for name in trainings:
        inputs |= {f"log/{name}": StageOutput(name, LOG), f"training/{name}": StageOutput(name, TRAINING)}
        if "dev" in builder.stages[name].inputs:
            inputs[f"validation/{name}"] = StageOutput(name, VALIDATION, observed=True)
    inputs |= {
        f"truncated/{name}": StageOutput(name, TRUNCATED)
        for name, stage in builder.stages.items()
        if TRUNCATED in stage.spec.records
    }
    if builder.has(PRETRAIN):
        inputs["probes"] = StageOutput("pretrained", PROBES, observed=True)
    if builder.has(CHOOSE):
        inputs["choice"] = StageOutput("choice", CHOICE)
    curve, unlabelled = _learning_curve(builder.recipe)
    extra = {"trainings": tuple(trainings), "exported": exported, "curve": curve, "unlabelled": unlabelled}
    extra["steps"] = _steps_of_systems(builder.recipe)
    builder.add("report", REPORT, "curves, tables, and whether pre-training works", inputs, extra=extra)


def _learning_curve(recipe: Recipe) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the line of each system, if the rounds differ in their labelled queries, and the systems without any."""
    rounds = recipe.finetune.rounds if recipe.finetune else ()
    judged = [one for one in rounds if one.pairs != PSEUDO]
    if len({one.queries for one in judged}) < 2:
        return {}, ()
    unlabelled = [one.name for one in rounds if one.pairs == PSEUDO] or ["pretrained"]
    name = WITH if unlabelled == ["pretrained"] else WITH_PSEUDO
    lines = {INITIAL: WITHOUT, AS_IT_IS: WITHOUT, **dict.fromkeys(unlabelled, name)}
    lines |= {one.name: WITHOUT if one.start == INITIAL else name for one in judged}
    return lines, (INITIAL, AS_IT_IS, *unlabelled)


def _steps_of_systems(recipe: Recipe) -> dict[str, dict[str, int | None]]:
    """Return the steps of pre-training before each system (None: all), by line of a chart; empty if none are kept."""
    kept = recipe.pretrain.kept if recipe.pretrain else {}
    rounds = recipe.finetune.rounds if recipe.finetune else ()
    if not kept:
        return {}
    starts = {INITIAL: 0, **kept, PRETRAINED: None}
    tuned = {one.name: starts[one.start] for one in rounds if one.start in starts}
    return {FINETUNED: {LABELS_ONLY: 0, **tuned}, WITH: {INITIAL: 0, AS_IT_IS: 0, **kept, PRETRAINED: None}}
