"""Make the runs of a study, or of a rung of a search, one after another or side by side; equal stages once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from attrs import frozen

from drkit.core.engine import LOCAL, Engine, ProcessEngine, Task, open_engine
from drkit.core.files import MANIFEST
from drkit.core.progress import Progress, Silent
from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.runs.execute import execute
from drkit.runs.prepare import prepare
from drkit.runs.survey import UNFINISHED
from drkit.studies.design import PlannedRun

# The folder of a study in which its runs lock stages; seconds between looks at what they have made.
LOCKS, _INTERVAL = ".locks", 1.0


@frozen
class Finished:
    """A finished run: its folder, its seconds, the notes of its stages, and why it failed (empty if it did not)."""

    folder: Path
    seconds: float
    notes: tuple[str, ...]
    failure: str = ""


class _Notes(Silent):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note until the study shows it."""
        self.texts.append(text)


@contextmanager
def open_processes(processes: int, engine: str) -> Iterator[Engine]:
    """Open what makes runs: a number of processes side by side, or an engine; see `drkit.core.engine.open_engine`.

    Raises DrkitError for both several processes and an engine.
    """
    if processes > 1:
        if engine != LOCAL:
            raise DrkitError(f"give several processes or the engine {engine}, which has processes of its own, not both")
        yield ProcessEngine(processes)
        return
    with open_engine(engine) as opened:
        yield opened


def make_runs(
    runs: Sequence[PlannedRun],
    engine: Engine,
    progress: Progress,
    *,
    title: str = "study",
    reuse: Sequence[Path] = (),
    on_done: Callable[[PlannedRun, Finished], None] | None = None,
) -> None:
    """Make every run that is not finished.

    title: of the runs together, for the progress. reuse: other runs whose equal stages are shared. on_done: called
    after each run; with it, a run that fails does not end the others.

    Raises DrkitError as a run does, naming each that failed if several are made side by side; the others are kept.
    """
    folders = (*(run.folder.absolute() for run in runs), *(folder.absolute() for folder in reuse))
    tried, tasks = set[str](), []
    for run in runs:  # the parts of a cell are tried once
        trial = None if run.cell.name not in tried else False
        tried.add(run.cell.name)
        arguments = (recipe_table(run.recipe), run.folder.absolute(), folders, trial, on_done is not None)
        tasks.append(Task(run.folder.name, make_run, arguments, uses="gpu"))
    said = set[str]()
    progress.begin(title, f"{len(tasks)} runs")
    began = time.perf_counter()
    with _watching(runs, progress):
        by_folder = {run.folder.absolute(): run for run in runs}
        # An engine of several processes leaves out a task that failed.
        for number, done in enumerate(engine.run(tasks), start=1):
            run = by_folder[done.folder]
            for note in (one for one in (*run.notes, *done.notes) if one not in said):
                said.add(note)
                progress.note(f"{run.folder.name}: {note}")
            failed = f", failed: {done.failure}" if done.failure else ""
            progress.note(f"{run.folder.name}: run {number} of {len(tasks)}, {done.seconds:,.0f} s{failed}")
            if on_done:
                on_done(run, done)
    progress.end(title, time.perf_counter() - began)


def make_run(
    table: Mapping[str, Any], folder: Path, folders: Sequence[Path], trial: bool | None, is_tolerant: bool = False
) -> Finished:
    """Make one run of a study, in whatever process.

    table: its recipe, as plain data. folders: of all runs of the study, which share equal stages. trial: see
    `drkit.runs.prepare.prepare`. Raises DrkitError as a run does, unless is_tolerant: then the result says why.
    """
    parts, notes, began = installed(), _Notes(), time.perf_counter()
    recipe, failure = recipe_from_table(table, parts.registry), ""
    try:
        made = prepare(recipe, parts.registry, folder, trial=trial)
        execute(
            made.stages,
            folder,
            recipe,
            registry=parts.registry,
            progress=notes,
            reuse=[one for one in folders if one != folder],
            locks=folder.parent / LOCKS,
            collection=made.collection,
        )
    except DrkitError as error:
        if not is_tolerant:
            raise
        failure = str(error)
    return Finished(folder, time.perf_counter() - began, tuple(notes.texts), failure)


@contextmanager
def _watching(runs: Sequence[PlannedRun], progress: Progress) -> Iterator[None]:
    """Show what the runs have made, wherever they are made, for the length of a block."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL):
            _show(runs, progress)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show(runs: Sequence[PlannedRun], progress: Progress) -> None:
    """Show how many stages of all runs are finished, and for how many seconds others are being made."""
    total = sum(len(run.stages) for run in runs)
    done = sum(1 for run in runs for stage in run.stages if (run.folder / stage.name / MANIFEST).is_file())
    now, working = time.time(), {}
    for run in runs:
        for stage in run.stages:
            try:
                since = (run.folder / UNFINISHED / stage.name).stat().st_ctime
            except OSError:  # not being made
                continue
            working[f"{run.folder.name} {stage.name} s"] = float(int(now - since))
    progress.advance(done, total, "stages", **working)
