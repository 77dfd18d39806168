"""Stage: the report. What the run found, and the curves of its trainings, in `report.md` and `report.html`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drkit.core.files import write_text
from drkit.evaluate.systems import stored_cell, table_caption
from drkit.report.curves import Panel, draw, loss_panels, probe_panels, validation_panel
from drkit.report.document import Block, Figure, Heading, Table, Text, html_page, markdown
from drkit.runs.finetuning.retrieval_probe import MEASURE
from drkit.runs.finetuning.validations import best_step, read_validations
from drkit.runs.manifest import Manifest, read_manifest
from drkit.runs.pretraining.probes import FILE as PROBES
from drkit.runs.pretraining.probes import Record, probe_line, read_probes
from drkit.runs.stage import StageRun

LOG = "log.jsonl"


def run(stage: StageRun) -> Mapping[str, Any]:
    """Writes `report.md`, `report.html` and the figures as PNG; returns how many of them there are."""
    path = stage.inputs.get("pretrained", Path()) / PROBES
    probes = read_probes(path) if path.is_file() else []
    blocks = [
        Heading(stage.recipe.name, level=1),
        *_results(stage),
        *_probes(stage, probes),
        *_trainings(stage, probes),
        *_validations(stage),
    ]
    blocks.append(Text("The recipe is recipe.toml in the run's folder; `drkit run` on it repeats the run."))
    write_text(stage.folder / "report.md", markdown(blocks))
    write_text(stage.folder / "report.html", html_page(blocks))
    return {"figures": sum(isinstance(block, Figure) for block in blocks)}


def _manifest(stage: StageRun, name: str) -> Manifest:
    found = read_manifest(stage.inputs[name])
    assert found is not None, name  # the stage could not have started
    return found


def _results(stage: StageRun) -> Iterator[Block]:
    """Every system's measures."""
    if "evaluation" not in stage.inputs:
        return
    done = _manifest(stage, "evaluation")
    rows = done.metrics["rows"]
    measures = list(rows[0]["values"])
    yield Heading("Results")
    said = table_caption({name: len(draws) for name, draws in done.metrics.get("draws", {}).items()})
    yield Text(f"{done.metrics['queries']:,} {done.settings['split']} queries. {said}")
    yield Table(["system", *measures], [[row["system"], *(stored_cell(row, m) for m in measures)] for row in rows])


def _probes(stage: StageRun, probes: Sequence[Record]) -> Iterator[Block]:
    """Is pre-training working?"""
    if not probes:
        return
    yield Heading("Is pre-training working?")
    yield from _figure(
        stage, "probes.png", probe_panels(probes), "Probes on texts that were kept out of pre-training, and on queries"
    )
    yield Text(_in_words(probes))
    yield _probe_table(probes)
    yield Text("docs/is-it-working.md says what each number means, and what healthy and sick runs look like.")


def _in_words(probes: Sequence[Record]) -> str:
    """The last probe in a line, and which one found most."""
    said = f"The last one: {probe_line(probes[-1])}."
    searched = [probe for probe in probes if MEASURE in probe]
    if not searched:
        return said
    best = max(searched, key=lambda probe: probe[MEASURE])
    return f"{said} {MEASURE} was highest at step {best['step']:,} ({best[MEASURE]:.3f})."


def _probe_table(probes: Sequence[Record]) -> Table:
    names = list(dict.fromkeys(name for probe in probes for name in probe if name != "step"))
    return Table(
        ["step", *(name.replace("_", " ") for name in names)],
        [[f"{probe['step']:,}", *(f"{probe[n]:.3f}" if n in probe else "" for n in names)] for probe in probes],
    )


def _trainings(stage: StageRun, probes: Sequence[Record]) -> Iterator[Block]:
    """Loss curves and what each training took."""
    names = stage.stage.settings["trainings"]
    if not names:
        return
    logs = {name: _log(stage.inputs[name] / LOG) for name in names}
    yield Heading("Trainings")
    yield from _figure(
        stage,
        "losses.png",
        loss_panels(logs, probes),
        "Losses: means between two lines of the log, and on texts that were kept out",
    )
    rows = []
    for name in names:
        metrics = _manifest(stage, name).metrics
        loss = f"{metrics['loss']:.3f}" if math.isfinite(metrics["loss"]) else "not logged"
        rows.append([name, f"{metrics['steps']:,}", loss, f"{metrics['seconds']:,.0f}"])
    yield Table(["training", "steps", "loss, last tenth", "seconds"], rows)


def _validations(stage: StageRun) -> Iterator[Block]:
    """How good each retriever was on dev queries while it was trained, and which weights were kept."""
    found = {name: read_validations(stage.inputs[name]) for name in stage.stage.settings["trainings"]}
    found = {name: records for name, records in found.items() if records}
    if not found:
        return
    yield Heading("Validation")
    yield from _figure(stage, "validation.png", [validation_panel(found)], "Dev queries, ranked while training")
    rows = []
    for name, records in found.items():
        measure = next(key for key in records[0] if key != "step")
        best = best_step(records, measure)
        value = next(record[measure] for record in records if record["step"] == best)
        rows.append([name, measure, f"{value:.3f}", f"{best:,}", f"{int(records[-1]['step']):,}"])
    yield Table(["training", "measure", "best", "at step", "last step"], rows)


def _figure(stage: StageRun, name: str, panels: Sequence[Panel], caption: str) -> Iterator[Figure]:
    if any(line.points for panel in panels for line in panel.lines):
        yield Figure(draw(panels, stage.folder / name), caption)


def _log(path: Path) -> list[Mapping[str, float]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
