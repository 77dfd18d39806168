"""The results of a study: the effects of every axis before labels and with each number of labels, and the cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, frozen

from drkit.commands.records import RunRecord, open_run
from drkit.core.engine import LOCAL
from drkit.core.files import write_json, write_text
from drkit.core.progress import Progress, Silent
from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.evaluate.effects import Array, Effect, estimate_mean, factorial_effects
from drkit.evaluate.measures import Scores
from drkit.evaluate.names import BM25_NAME
from drkit.recipe.schema import PRETRAINED
from drkit.studies.design import ALL, Cell, Design, design_study
from drkit.studies.execution import make_runs, open_processes
from drkit.studies.page import draw_effects, study_page

_PAGE, PICTURE, _RECORD = "study.md", "study.png", "study.json"


@frozen
class Result:
    """A cell's mean of the first measure, and its standard deviation over seeds (NaN for a single one).

    low, high: its 95 % interval over seeds and queries (`drkit.evaluate.effects.estimate_mean`).
    """

    cell: Cell
    mean: float
    deviation: float
    runs: tuple[Path, ...]
    low: float = math.nan
    high: float = math.nan


@frozen
class Table:
    """The results before labels, or with one number of them; references: means of systems that belong to no cell.

    title: of the table; key: `before`, `after`, or the number of labels.
    """

    key: str
    title: str
    measure: str
    queries: int
    effects: tuple[Effect, ...]
    results: tuple[Result, ...]
    references: Mapping[str, float]


@frozen
class Study:
    """A finished study: its design, and a table of results."""

    design: Design
    tables: tuple[Table, ...]

    def effects(self) -> list[dict[str, Any]]:
        """Return a row for each effect of each table; `pandas.DataFrame(rows)` takes them.

        A row has `labels` (`before`, `after` or their number), `effect` in words, `interaction`, `measure`, `mean`,
        `low` and `high` (95 %), `p`, and `corrected` after Holm's correction over the effects of the table.
        """
        return [
            {
                "labels": table.key,
                "effect": str(effect),
                "levels": dict(effect.levels),
                "baselines": dict(effect.baselines),
                "interaction": effect.is_interaction,
                "measure": table.measure,
                **asdict(effect.estimate),
                "corrected": effect.corrected,
            }
            for table in self.tables
            for effect in table.effects
        ]

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each cell of each table: its values on the axes, the labels, measure, mean, interval .."""
        return [
            {
                **result.cell.levels,
                "labels": table.key,
                "measure": table.measure,
                "mean": result.mean,
                "low": result.low,
                "high": result.high,
                "deviation": result.deviation,
                "runs": [str(run) for run in result.runs],
            }
            for table in self.tables
            for result in table.results
        ]

    def write(self) -> Path:
        """Write the page, its picture and the numbers as JSON into the folder of the study; returns the page."""
        folder = self.design.folder
        draw_effects(self.tables, len(self.design.seeds), folder / PICTURE)
        write_json(folder / _RECORD, {"effects": self.effects(), "cells": self.table()})
        write_text(folder / _PAGE, study_page(self.design, self.tables, PICTURE))
        return folder / _PAGE


def study(
    *,
    folder: str | Path = "runs/study",
    seeds: Sequence[int] = (42,),
    labels: Sequence[int | None] = (None,),
    processes: int = 1,
    engine: str = LOCAL,
    progress: Progress | None = None,
    **choices: Any,
) -> Study:
    """Make a factorial study: every combination of some choices, with every seed and number of labels.

    choices, labels: as for `design_study`; a list is an axis. processes: runs that are made side by side, each with its
    share of the threads. engine: see `drkit.core.engine.open_engine`. Equal stages are made once, and finished ones are
    kept. The folder gets `study.md`.

    The effects are on the first measure of the evaluation, by query, averaged over the other axes. Their intervals
    treat seeds and queries as random (see `drkit.evaluate.effects`); with one seed, they are over queries alone.

    Raises DrkitError as `design_study` and `drkit.run` do.
    """
    design = design_study(folder=folder, seeds=seeds, labels=labels, **choices)
    make_study(design, processes=processes, engine=engine, progress=progress or Silent())
    found = read_study(design)
    found.write()
    return found


def make_study(design: Design, *, processes: int = 1, engine: str = LOCAL, progress: Progress) -> None:
    """Make the runs of a study. Raises DrkitError as a run does, and for both several processes and an engine."""
    with open_processes(processes, engine) as opened:
        make_runs(design.runs, opened, progress)


def read_study(design: Design) -> Study:
    """Read the results of a study whose runs are finished. Raises DrkitError for a run that was not evaluated."""
    parts = installed()
    records = {run.folder: open_run(run.folder, parts) for run in design.runs}
    missing = [folder for folder, record in records.items() if not record.results]
    if missing:
        raise DrkitError(f"{missing[0]} is not evaluated; repeat the command, which keeps what is finished")
    return Study(design, tuple(_tables(design, records)))


def _tables(design: Design, records: Mapping[Path, RunRecord]) -> Iterator[Table]:
    first = design.labels[0]
    if all(PRETRAINED in record.scores for record in records.values()):
        yield _table(design, records, first, PRETRAINED, ("before", "Before labels"))
    for labels in design.labels:
        compared = {record.compared for record in records.values()}
        if compared == {PRETRAINED}:  # nothing is fine-tuned
            return
        yield _table(design, records, labels, "", _heading(labels))


def _heading(labels: int | None) -> tuple[str, str]:
    if labels is None:
        return "after", "After labels"
    return ("all", "After all labels") if labels == ALL else (str(labels), f"After {labels:,} labels")


def _table(
    design: Design, records: Mapping[Path, RunRecord], labels: int | None, system: str, heading: tuple[str, str]
) -> Table:
    """Return the table of a system, or of each run's compared one, with a number of labels."""
    runs = {cell.name: [records[run.folder] for run in design.runs_of(cell, labels)] for cell in design.cells}
    scores = {name: [one.scores[system or one.compared] for one in found] for name, found in runs.items()}
    measure = next(iter(scores.values()))[0].measures[0]
    queries = sorted(next(iter(scores.values()))[0].per_query[measure])
    values = _array(design, scores, measure, queries)
    by_cell = values.reshape(len(design.cells), *values.shape[-2:])
    results = [
        Result(
            cell,
            statistics.fmean(means := [one.mean(measure) for one in scores[cell.name]]),
            statistics.stdev(means) if len(means) > 1 else math.nan,
            tuple(record.folder for record in runs[cell.name]),
            low=estimate.low,
            high=estimate.high,
        )
        for cell, estimate in zip(design.cells, map(estimate_mean, by_cell), strict=True)
    ]
    shown = [record for found in runs.values() for record in found]
    return Table(
        heading[0],
        heading[1],
        measure,
        len(queries),
        tuple(factorial_effects(design.axes, values)),
        tuple(results),
        _references(shown, measure, is_before=system == PRETRAINED),
    )


def _array(design: Design, scores: Mapping[str, Sequence[Scores]], measure: str, queries: Sequence[str]) -> Array:
    """Return the values of every level, seed and query, as `factorial_effects` takes them.

    Raises DrkitError if the cells were evaluated on different queries.
    """
    rows = []
    for cell in design.cells:
        for seed, one in zip(design.seeds, scores[cell.name], strict=True):
            found = one.per_query.get(measure, {})
            if found.keys() != {*queries}:
                raise DrkitError(
                    f"{cell.name} with seed {seed} was evaluated on other queries or by other measures: "
                    f"an axis must not change what is measured"
                )
            rows.append([found[query] for query in queries])
    shape = (*map(len, design.axes.values()), len(design.seeds), len(queries))
    return np.array(rows, dtype=np.float64).reshape(shape)


def _references(records: Sequence[RunRecord], measure: str, *, is_before: bool) -> dict[str, float]:
    """Return the means of the systems besides the compared ones, averaged over runs; BM25 alone before labels."""
    names = [BM25_NAME] if is_before else [*records[0].scores]
    others = [name for name in names if name not in (PRETRAINED, records[0].compared)]
    return {
        name: statistics.fmean(record.scores[name].mean(measure) for record in records)
        for name in others
        if all(name in record.scores for record in records)
    }
