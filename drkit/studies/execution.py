"""Make the runs of a study, one after another or side by side; equal stages are made once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from attrs import frozen

from drkit.core.engine import Engine, Task
from drkit.core.files import MANIFEST
from drkit.core.progress import Progress, Silent
from drkit.core.registry import installed
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.runs.execute import execute
from drkit.runs.prepare import prepare
from drkit.runs.survey import UNFINISHED
from drkit.studies.design import Design

# The folder of a study in which its runs lock stages; seconds between looks at what they have made.
LOCKS, _INTERVAL = ".locks", 1.0


@frozen
class Finished:
    """A finished run: its seconds, and the notes of its stages."""

    seconds: float
    notes: tuple[str, ...]


class _Notes(Silent):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note."""
        self.texts.append(text)


def make_runs(design: Design, engine: Engine, progress: Progress) -> None:
    """Make every run that is not finished.

    Raises DrkitError as a run does, naming each that failed if several are made side by side; the others are kept.
    """
    folders = tuple(run.folder.absolute() for run in design.runs)
    tried, tasks = set[str](), []
    for run in design.runs:  # the parts of a cell are tried once
        trial = None if run.cell.name not in tried else False
        tried.add(run.cell.name)
        arguments = (recipe_table(run.recipe), run.folder.absolute(), folders, trial)
        tasks.append(Task(run.folder.name, make_run, arguments, uses="gpu"))
    said = set[str]()
    progress.begin("study", f"{len(tasks)} runs")
    began = time.perf_counter()
    with _watching(design, progress):
        for number, (run, done) in enumerate(zip(design.runs, engine.run(tasks), strict=False), start=1):
            for note in (one for one in (*run.notes, *done.notes) if one not in said):
                said.add(note)
                progress.note(f"{run.folder.name}: {note}")
            progress.note(f"{run.folder.name}: run {number} of {len(tasks)}, {done.seconds:,.0f} s")
    progress.end("study", time.perf_counter() - began)


def make_run(table: Mapping[str, Any], folder: Path, folders: Sequence[Path], trial: bool | None) -> Finished:
    """Make one run of a study, in whatever process.

    table: its recipe, as plain data. folders: of all runs of the study, which share equal stages. trial: see
    `drkit.runs.prepare.prepare`. Raises DrkitError as a run does.
    """
    parts, notes, began = installed(), _Notes(), time.perf_counter()
    recipe = recipe_from_table(table, parts.registry)
    made = prepare(recipe, parts.registry, folder, trial=trial)
    execute(
        made.stages,
        folder,
        recipe,
        registry=parts.registry,
        progress=notes,
        reuse=[one for one in folders if one != folder],
        locks=folder.parent / LOCKS,
    )
    return Finished(time.perf_counter() - began, tuple(notes.texts))


@contextmanager
def _watching(design: Design, progress: Progress) -> Iterator[None]:
    """Show what the runs have made, wherever they are made, for the length of a block."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL):
            _show(design, progress)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(design: Design, progress: Progress) -> None:
    """Show how many stages of all runs are finished, and for how many seconds others are being made."""
    total = sum(len(run.stages) for run in design.runs)
    done = sum(1 for run in design.runs for stage in run.stages if (run.folder / stage.name / MANIFEST).is_file())
    now, working = time.time(), {}
    for run in design.runs:
        for stage in run.stages:
            try:
                since = (run.folder / UNFINISHED / stage.name).stat().st_ctime
            except OSError:  # not being made
                continue
            working[f"{run.folder.name} {stage.name} s"] = float(int(now - since))
    progress.advance(done, total, "stages", **working)
