"""Write the report of a run, with its figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drkit.charts import Line, Panel, draw
from drkit.core.files import read_log, write_text
from drkit.errors import MissingExtraError
from drkit.evaluate.names import system_name
from drkit.evaluate.systems import VERDICT_CAPTION, format_cell, table_caption, verdict
from drkit.report import Block, Figure, Heading, Table, Text, loss_panels, markdown, probe_panels, validation_panel
from drkit.runs.stage import StageRun, read_truncations
from drkit.runs.stages.report import ReportSettings
from drkit.runs.stages.retriever import describe_choice
from drkit.train.probes import Record, probe_line
from drkit.train.retrieval_probe import MEASURE
from drkit.train.validation import best_step


def write_report(stage: StageRun[ReportSettings]) -> Mapping[str, Any]:
    """Write `report.md` and the figures as PNG; returns the number of figures."""
    probes = read_log(stage.inputs["probes"]) if "probes" in stage.inputs else []
    results = _json(stage.inputs["results"]) if "results" in stage.inputs else None
    blocks = [
        Heading(stage.settings.title, level=1),
        *(_results(results) if results else ()),
        *(_learning_curve(stage, results) if results and stage.settings.curve else ()),
        *(_steps_curve(stage, results) if results and stage.settings.steps else ()),
        Text(f"{_exported(stage)}."),
        *_truncations(stage),
        *_probes(stage, probes),
        *_trainings(stage, probes),
        *_validations(stage),
    ]
    blocks.append(Text("The recipe is recipe.toml in the run's folder; drkit run repeats the run from it."))
    write_text(stage.folder / "report.md", markdown(blocks))
    return {"figures": sum(isinstance(block, Figure) for block in blocks)}


def _results(results: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the table of every system's measures."""
    rows = results["rows"]
    measures = list(rows[0]["values"])
    yield Heading("Results")
    caption = table_caption({name: len(draws) for name, draws in results["draws"].items()})
    yield Text(f"{results['queries']:,} {results['split']} queries. {caption}")
    if results["warning"]:
        yield Text(results["warning"])
    cells = [[system_name(row["system"]), *(format_cell(row, m) for m in measures)] for row in rows]
    yield Table(["system", *measures], cells)
    lines = verdict(results)
    for line in [VERDICT_CAPTION.rstrip(":"), *lines] if lines else []:
        yield Text(f"{line}.")


def _learning_curve(stage: StageRun[ReportSettings], results: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the main measure over the number of labelled queries, with and without training on the texts before."""
    measure, points = results["measures"][0], dict[str, list[tuple[float, float]]]()
    for row in results["rows"]:
        if line := stage.settings.curve.get(row["system"]):
            queries = 0
            if row["system"] not in stage.settings.unlabelled:
                training = stage.inputs[f"training/{results['runs'][row['system']][0]}"]
                queries = _json(training)["examples"]
            points.setdefault(line, []).append((queries, row["values"][measure]))
    lines = [Line(name, sorted(found)) for name, found in points.items()]
    yield Heading("Learning curve")
    panel = Panel(f"{measure} over labelled queries", measure, lines, floor=True, x="labelled queries", log=True)
    yield from _figure(stage, "learning-curve.png", [panel], "Means over draws; 0: before fine-tuning")


def _steps_curve(stage: StageRun[ReportSettings], results: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the main measure over the steps of pre-training, if a line has several of them."""
    measure, last = results["measures"][0], _json(stage.inputs["training/pretrained"])["steps"]
    values = {row["system"]: row["values"][measure] for row in results["rows"]}
    lines = []
    for name, steps in stage.settings.steps.items():
        reached = {system: last if step is None else step for system, step in steps.items()}
        points = sorted((step, values[system]) for system, step in reached.items() if system in values)
        lines += [Line(name, points)] if len(points) > 1 else []
    if lines:
        yield Heading("Steps of pre-training")
        panel = Panel(f"{measure} over steps of pre-training", measure, lines, floor=True, x="steps of pre-training")
        yield from _figure(stage, "steps.png", [panel], "Retrievers from kept checkpoints; 0: without pre-training")


def _exported(stage: StageRun[ReportSettings]) -> str:
    path = stage.inputs.get("choice")
    text = describe_choice(_json(path)) if path else stage.settings.exported
    return text[:1].upper() + text[1:]


def _truncations(stage: StageRun[ReportSettings]) -> Iterator[Block]:
    """Yield how many passages and queries were truncated, and the settings that read more of them."""
    paths = [path for name, path in stage.inputs.items() if name.startswith("truncated/")]
    found = [one for path in paths for one in read_truncations(path)]
    if found:
        yield Heading("Truncated texts")
        yield from (Text(f"{one}.") for one in dict.fromkeys(found))


def _probes(stage: StageRun[ReportSettings], probes: Sequence[Record]) -> Iterator[Block]:
    """Yield curves and a table of the probes of pre-training."""
    if not probes:
        return
    yield Heading("Is pre-training working?")
    yield from _figure(
        stage, "probes.png", probe_panels(probes), "Probes on texts held out of pre-training, and on queries"
    )
    yield Text(_describe_probes(probes))
    yield _probe_table(probes)
    yield Text("docs/guide/is-it-working.md explains each number, with examples of healthy and failing runs.")


def _describe_probes(probes: Sequence[Record]) -> str:
    """Return the last probe, and the one with the best retrieval, in words."""
    last = f"Last probe: {probe_line(probes[-1])}."
    searched = [probe for probe in probes if MEASURE in probe]
    if not searched:
        return last
    best = max(searched, key=lambda probe: probe[MEASURE])
    return f"{last} {MEASURE} was highest at step {best['step']:,} ({best[MEASURE]:.3f})."


def _probe_table(probes: Sequence[Record]) -> Table:
    names = list(dict.fromkeys(name for probe in probes for name in probe if name != "step"))
    return Table(
        ["step", *(name.replace("_", " ") for name in names)],
        [[f"{probe['step']:,}", *(f"{probe[n]:.3f}" if n in probe else "" for n in names)] for probe in probes],
    )


def _trainings(stage: StageRun[ReportSettings], probes: Sequence[Record]) -> Iterator[Block]:
    """Yield loss curves, and the steps, loss and seconds of each training."""
    names = stage.settings.trainings
    if not names:
        return
    yield Heading("Trainings")
    yield from _figure(
        stage,
        "losses.png",
        loss_panels({name: read_log(stage.inputs[f"log/{name}"]) for name in names}, probes),
        "Training losses (means between log entries), and losses on held-out texts",
    )
    rows = []
    for name in names:
        done = _json(stage.inputs[f"training/{name}"])
        loss = "not logged" if done["loss"] is None else f"{done['loss']:.3f}"
        rows.append([name, f"{done['steps']:,}", loss, f"{done['seconds']:,.0f}"])
    yield Table(["training", "steps", "loss, last tenth", "seconds"], rows)


def _validations(stage: StageRun[ReportSettings]) -> Iterator[Block]:
    """Yield validation curves on dev queries, and the best step of each training."""
    paths = {
        name: stage.inputs[f"validation/{name}"]
        for name in stage.settings.trainings
        if f"validation/{name}" in stage.inputs
    }
    found = {name: records for name, path in paths.items() if (records := read_log(path))}
    if not found:
        return
    yield Heading("Validation")
    yield from _figure(stage, "validation.png", [validation_panel(found)], "Validation on dev queries during training")
    rows = []
    for name, records in found.items():
        measure = next(key for key in records[0] if key != "step")
        best = best_step(records, measure)
        value = next(record[measure] for record in records if record["step"] == best)
        rows.append([name, measure, f"{value:.3f}", f"{best:,}", f"{int(records[-1]['step']):,}"])
    yield Table(["training", "measure", "best", "at step", "last step"], rows)


def _figure(stage: StageRun[ReportSettings], name: str, panels: Sequence[Panel], caption: str) -> Iterator[Block]:
    if any(line.points for panel in panels for line in panel.lines):
        try:
            yield Figure(draw(panels, stage.folder / name), caption)
        except MissingExtraError as missing:
            yield Text(f"{caption}: {missing}, and remove this folder to write the report again.")


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
