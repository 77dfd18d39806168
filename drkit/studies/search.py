"""Search for a composition by successive halving over its choices, by dev queries alone.

A search draws compositions from its space, trains all of them for few steps, and lets the best third go on with more
(`drkit.studies.rungs`). `search.json` in its folder has what is decided, as it is decided, so that a repeated command
goes on; a rung that has begun is finished.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cattrs
from attrs import evolve, field, frozen

from drkit.commands.prune import prune_run
from drkit.commands.records import open_run
from drkit.core.engine import LOCAL, Engine
from drkit.core.files import PROBES, digest, read_json, write_json
from drkit.core.progress import Progress
from drkit.core.quantities import counted
from drkit.core.registry import installed
from drkit.errors import DrkitError, ProblemsError
from drkit.evaluate.tuning import choose_plainly
from drkit.recipe.schema import PRETRAINED
from drkit.recipe.toml import plain
from drkit.runs.costs import Cost, earlier_rates
from drkit.runs.manifest import load_manifest
from drkit.studies.costs import estimate_runs
from drkit.studies.design import Cell, PlannedRun, show_level
from drkit.studies.execution import Finished, make_runs, open_processes
from drkit.studies.rungs import KEPT_COMPOSITIONS, Rung, Timing, divide, plan_rungs, rank_correlation, survivors
from drkit.studies.space import Drawn, Space, draw

_RECORD, SEARCH_PAGE = "search.json", "search.md"
# The measure of pre-training's last probe that is compared with the scores.
PROBE = "RR@10"
# Compositions by which the time is estimated.
_ESTIMATED = 12


@frozen
class RungRecord:
    """A rung: its compositions by level and their steps, and by name the seconds, scores, probes and failures.

    scores: means of the measure on the dev queries, empty until the rung is finished. probes: the last RR@10 of
    pre-training's probe. expected: the seconds of all, as planned.
    """

    steps: int
    cells: tuple[dict[str, str], ...]
    expected: float
    seconds: dict[str, float] = field(factory=dict)
    scores: dict[str, float] = field(factory=dict)
    probes: dict[str, float] = field(factory=dict)
    failures: dict[str, str] = field(factory=dict)

    @property
    def best_first(self) -> list[str]:
        """The names of the compositions that have a score, the best first."""
        return sorted(self.scores, key=lambda name: -self.scores[name])


@frozen
class SearchRecord:
    """A search, as `search.json` has it.

    request: a hash of the space. slots: runs made side by side. trial: seconds of the run that was timed first, where
    time is not estimated. equal: the compositions of the last rung whose difference to the winner is within one
    standard error. end: why the search ended, empty before.
    """

    request: str
    hours: float
    measure: str
    combinations: int
    tried: int
    left_out: dict[str, int]
    slots: int
    trial: float = 0.0
    rungs: tuple[RungRecord, ...] = ()
    equal: tuple[str, ...] = ()
    end: str = ""

    @property
    def spent(self) -> float:
        """The seconds that runs have taken, side by side where they were."""
        each = (sum(one.seconds.values()) / max(1, min(self.slots, len(one.cells))) for one in self.rungs)
        return self.trial + sum(each)

    @property
    def winner(self) -> str:
        """The name of the best composition of the last finished rung."""
        return self.finished[-1].best_first[0]

    @property
    def finished(self) -> list[RungRecord]:
        """The rungs that have scores."""
        return [one for one in self.rungs if one.scores]

    def correlations(self) -> list[dict[str, Any]]:
        """Return Kendall's tau of the scores of each rung with those of the next, and of its probes with both.

        A row has `rung`, `predictor` (scores, probe), `predicted` (a rung), `tau` (None for fewer than 3) and
        `compositions`.
        """
        rows = []
        for number, rung in enumerate(self.finished):
            pairs = [("probe", rung.probes, number)] if rung.probes else []
            if number + 1 < len(self.finished):
                pairs = [("scores", rung.scores, number + 1), *pairs]
                pairs += [("probe", rung.probes, number + 1)] if rung.probes else []
            for name, values, predicted in pairs:
                tau, common = rank_correlation(values, self.finished[predicted].scores)
                row = {"rung": number + 1, "predictor": name, "predicted": predicted + 1}
                rows.append({**row, "tau": tau, "compositions": common})
        return rows


@frozen
class SearchPlan:
    """The rungs of a search before it begins, and their cost; neither where no earlier run shows the time."""

    space: Space
    drawn: Drawn
    rungs: tuple[Rung, ...]
    cost: Cost | None


def plan_search(space: Space, hours: float) -> SearchPlan:
    """Return the rungs of a search, and what they cost, before anything is made.

    Raises DrkitError for too few hours, or if fewer than two compositions can be composed.
    """
    if not 0 < hours < 1e5:
        raise DrkitError(f"the hours of a search must be above 0 and below 100,000, got {hours:g}")
    drawn = draw(space, _ESTIMATED)
    if len(drawn.cells) < 2:
        problems = [f"{problem} ({counted(number, 'combination')})" for problem, number in drawn.left_out.items()]
        raise ProblemsError(
            "the search cannot be made", [f"{len(drawn.cells)} of {space.combinations:,} combinations fit", *problems]
        )
    timing, disk, memory = _estimated(space, drawn.cells)
    if timing is None:
        return SearchPlan(space, drawn, (), None)
    wanted = plan_rungs(space.combinations, hours * 3600, timing, space.least)[0].compositions
    drawn = draw(space, wanted)
    rungs = plan_rungs(len(drawn.cells), hours * 3600, timing, space.least)
    drawn = evolve(drawn, cells=drawn.cells[: rungs[0].compositions])
    seconds = timing.shared + sum(rung.seconds for rung in rungs)
    runs = sum(rung.compositions for rung in rungs)
    return SearchPlan(space, drawn, rungs, Cost(seconds, memory, disk * runs))


def _estimated(space: Space, cells: Sequence[Cell]) -> tuple[Timing | None, float, float]:
    """Return the seconds of runs, None if unknown; the bytes of disk of one, and those of memory."""
    few, many = space.least, space.least + space.steps
    runs = [space.run(cell, few, 0) for cell in cells]
    rates = earlier_rates(runs[0].folder)
    one = estimate_runs(runs[:1], rates)
    all_few = estimate_runs(runs, rates)
    all_many = estimate_runs([space.run(cell, many, 0) for cell in cells], rates)
    if one is None or all_few is None or all_many is None or all_many.unknown:
        return None, 0.0, 0.0
    per_step = (all_many.seconds - all_few.seconds) / (len(cells) * space.steps)
    per_run = (all_few.seconds - one.seconds) / (len(cells) - 1) - few * per_step
    shared = one.seconds - per_run - few * per_step
    timing = Timing(max(0.0, shared), max(0.0, per_run), max(1e-6, per_step))
    return timing, all_few.disk / len(cells), all_few.memory


def run_search(
    plan: SearchPlan, hours: float, *, processes: int = 1, engine: str = LOCAL, progress: Progress
) -> SearchRecord:
    """Make the rungs of a search, and go on with one that was interrupted; returns its record.

    Raises DrkitError for a folder that has another search, and if every composition of a rung fails.
    """
    space = plan.space
    with open_processes(processes, engine) as opened:
        record = evolve(_read(plan, hours, opened.slots), hours=hours, slots=opened.slots)
        while not record.end:
            if not record.rungs or record.rungs[-1].scores:
                record = _with_next_rung(plan, record, opened, progress)
            else:
                record = _with_scores(space, _make_rung(space, record, opened, progress), progress)
            write_json(space.folder / _RECORD, cattrs.unstructure(record))
    return record


def read_search(folder: Path) -> SearchRecord | None:
    """Return the record of a search, or None if it has not begun. Raises DrkitError if it is damaged."""
    path = folder / _RECORD
    if not path.is_file():
        return None
    advice = f"remove {folder}, or choose another --name"
    try:
        return cattrs.structure(read_json(path, advice), SearchRecord)
    except (cattrs.BaseValidationError, TypeError, ValueError, KeyError):
        raise DrkitError(f"{path} is not the record of a search; {advice}") from None


def _read(plan: SearchPlan, hours: float, slots: int) -> SearchRecord:
    space = plan.space
    axes = {axis: [*map(show_level, levels)] for axis, levels in space.axes.items()}
    request = digest({"choices": plain(space.choices), "axes": axes, "seed": space.seed})
    found = read_search(space.folder)
    if found is None:
        measure = space.run(plan.drawn.cells[0], space.steps, 0).recipe.evaluation.measures[0]
        left_out = dict(plan.drawn.left_out)
        return SearchRecord(request, hours, measure, space.combinations, plan.drawn.tried, left_out, slots)
    if found.request != request:
        raise DrkitError(f"{space.folder} has a search of other choices; remove it, or choose another --name")
    return found


def _with_next_rung(plan: SearchPlan, record: SearchRecord, engine: Engine, progress: Progress) -> SearchRecord:
    """Return the record with the next rung, or with the end of the search."""
    space = plan.space
    if not record.rungs:
        if not plan.rungs:
            record, plan = _timed(plan, record, engine, progress)
        first = plan.rungs[0]
        cells = tuple(dict(cell.levels) for cell in plan.drawn.cells)
        return evolve(record, rungs=(RungRecord(first.steps, cells, first.seconds),))
    last = record.rungs[-1]
    if len(last.cells) <= KEPT_COMPOSITIONS:
        return _ended(space, record, "the last rung is finished")
    if len(last.scores) < 2:
        return _ended(space, record, "all other compositions failed")
    number = min(len(last.scores), max(2, survivors(len(last.cells))))
    runs = _runs_of(space, record, len(record.rungs))
    timing = measured_timing(runs, last.seconds, last.steps, min(record.slots, len(runs)))
    rung = divide(number, record.hours * 3600 - record.spent, timing)[0]
    if rung.steps <= last.steps:
        return _ended(space, record, f"the time left is too short for a rung of more than {last.steps:,} steps")
    by_name = {space.cell_of(levels).name: levels for levels in last.cells}
    cells = tuple(by_name[name] for name in last.best_first[:number])
    for run in runs:
        if run.cell.name in last.scores and run.cell.name not in last.best_first[:number]:
            prune_run(run.folder, installed().registry)
    return evolve(record, rungs=(*record.rungs, RungRecord(rung.steps, cells, rung.seconds)))


def _timed(
    plan: SearchPlan, record: SearchRecord, engine: Engine, progress: Progress
) -> tuple[SearchRecord, SearchPlan]:
    """Time a short run of the first composition, where time is not estimated; returns the rungs that fit the rest."""
    space, began = plan.space, time.perf_counter()
    run = space.run(plan.drawn.cells[0], space.least, 0)
    make_runs([run], engine, progress, title="timing")
    seconds = time.perf_counter() - began
    timing = measured_timing([run], {run.cell.name: seconds}, space.least, 1)
    record = evolve(record, trial=seconds)
    left = record.hours * 3600 - record.trial
    wanted = plan_rungs(space.combinations, left, timing, space.least)[0].compositions
    drawn = draw(space, wanted)
    rungs = plan_rungs(len(drawn.cells), left, timing, space.least)
    record = evolve(record, tried=drawn.tried, left_out=dict(drawn.left_out))
    return record, SearchPlan(space, evolve(drawn, cells=drawn.cells[: rungs[0].compositions]), rungs, None)


def _make_rung(space: Space, record: SearchRecord, engine: Engine, progress: Progress) -> SearchRecord:
    """Make the runs of the last rung, and keep what each took as it ends; failures are kept for its scores."""
    number, rung = len(record.rungs), record.rungs[-1]
    seconds, failures = dict(rung.seconds), dict[str, str]()

    def current() -> SearchRecord:
        made = evolve(rung, seconds=dict(seconds), failures=dict(failures))
        return evolve(record, rungs=(*record.rungs[:-1], made))

    def on_done(run: PlannedRun, done: Finished) -> None:
        seconds.setdefault(run.cell.name, done.seconds)
        if done.failure:
            failures[run.cell.name] = done.failure
        write_json(space.folder / _RECORD, cattrs.unstructure(current()))

    # What a composition shares with others, it shared in the rung before.
    before = [run.folder for run in _runs_of(space, record, number - 1)] if number > 1 else []
    names = {space.cell_of(levels).name for levels in rung.cells}
    reuse = [folder for folder in before if folder.name in names]
    title = f"rung {number}: {len(rung.cells)} compositions of {rung.steps:,} steps"
    make_runs(_runs_of(space, record, number), engine, progress, title=title, reuse=reuse, on_done=on_done)
    return current()


def _runs_of(space: Space, record: SearchRecord, number: int) -> list[PlannedRun]:
    """Return the runs of a rung, by its number from 1."""
    rung = record.rungs[number - 1]
    return [space.run(space.cell_of(levels), rung.steps, number) for levels in rung.cells]


def _with_scores(space: Space, record: SearchRecord, progress: Progress) -> SearchRecord:
    """Return the record with the scores of its last rung. Raises DrkitError if every composition failed."""
    rung, scores, probes = record.rungs[-1], dict[str, float](), dict[str, float]()
    for run in _runs_of(space, record, len(record.rungs)):
        name = run.cell.name
        if name in rung.failures:
            continue
        found = open_run(run.folder, installed())
        if not found.results:
            raise DrkitError(f"{run.folder} is not evaluated; repeat the command, which keeps what is finished")
        scores[name] = found.scores[found.compared].mean(record.measure)
        last = found.log(PRETRAINED, PROBES)[-1:] if run.recipe.pretrain else []
        if last and PROBE in last[0]:
            probes[name] = last[0][PROBE]
    if not scores:
        raise ProblemsError("every composition failed", [f"{name}: {why}" for name, why in rung.failures.items()])
    made = evolve(rung, scores=scores, probes=probes)
    best = made.best_first[0]
    progress.note(f"rung {len(record.rungs)}: the best is {best}, {record.measure} {scores[best]:.3f} on dev queries")
    return evolve(record, rungs=(*record.rungs[:-1], made))


def _ended(space: Space, record: SearchRecord, reason: str) -> SearchRecord:
    """Return the record of a search that has ended, with the compositions that are as good as the winner."""
    rung, number = record.rungs[-1], len(record.rungs)
    values = {}
    for run in _runs_of(space, record, number):
        if run.cell.name in rung.scores:
            found = open_run(run.folder, installed())
            values[run.cell.name] = found.scores[found.compared].per_query[record.measure]
    best, *others = rung.best_first
    equal = tuple(name for name in others if choose_plainly({name: values[name], best: values[best]}).chosen == name)
    return evolve(record, end=reason, equal=equal)


def measured_timing(runs: Sequence[PlannedRun], seconds: Mapping[str, float], steps: int, slots: int) -> Timing:
    """Return the timing of finished runs, from their manifests; a stage that several runs have is counted once.

    seconds: of each run, by the name of its composition. slots: runs that were made side by side.
    """
    trained, after, before = dict[str, float](), dict[str, float](), dict[str, float]()
    for run in runs:
        later = set[str]()
        for stage in run.stages:
            manifest = load_manifest(run.folder / stage.name)
            if stage.is_training or later.intersection(stage.needs):
                later.add(stage.name)
            if manifest is not None:
                kind = trained if stage.is_training else after if stage.name in later else before
                kind[manifest.fingerprint] = manifest.seconds
    shared, steps_made = sum(before.values()), sum(trained.values())
    rest = max(sum(seconds.values()) - steps_made - shared, sum(after.values()))
    each = len(runs) * slots
    return Timing(shared / slots, rest / each, max(1e-6, steps_made / (each * steps)))
