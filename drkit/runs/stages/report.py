"""Stage: the report of a run, with results and training curves, as `report.md` (`drkit report` writes a page)."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from drkit.runs.stage import StageSpec, from_recipe

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
