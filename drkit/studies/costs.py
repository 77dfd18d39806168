"""What a study costs: the stages that its runs share are made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from drkit.core.registry import installed
from drkit.runs.attribution import build_collection
from drkit.runs.costs import Cost, Rates, collection_size, earlier_rates, estimate_cost, planned_sizes
from drkit.runs.stage import Stage
from drkit.runs.survey import survey
from drkit.studies.design import Design, PlannedRun


@frozen
class Sharing:
    """How a study's stages are made: `planned` in all runs, `different` ones among them, of which some are finished.

    shared: the names of stages that several runs have alike, and how many times each is made.
    """

    runs: int
    planned: int
    different: int
    finished: int
    shared: Mapping[str, int]


def describe_sharing(design: Design) -> Sharing:
    """Return what the runs of a study share, and what is finished."""
    users: dict[str, list[str]] = {}
    for run in design.runs:
        for name, identity in identities(run.stages).items():
            users.setdefault(identity, []).append(name)
    shared: dict[str, int] = {}
    for names in users.values():
        if len(names) > 1:
            shared[names[0]] = shared.get(names[0], 0) + 1
    return Sharing(len(design.runs), sum(map(len, users.values())), len(users), len(_finished(design.runs)), shared)


def estimate_study(design: Design, processes: int = 1) -> Cost | None:
    """Return the time, memory and disk of what a study still has to make; None without a known size.

    processes: of the runs that are made side by side: they share the machine, so that all take as long as one after
    another.
    """
    total = estimate_runs(design.runs, earlier_rates(design.runs[0].folder))
    return evolve(total, memory=total.memory * min(processes, len(design.runs))) if total else None


def estimate_runs(runs: Sequence[PlannedRun], rates: Rates) -> Cost | None:
    """Return the time, memory and disk of what runs still have to make, one after another; None without a known size.

    Stages that several runs have are counted once.
    """
    recipe = runs[0].recipe
    size = collection_size(recipe, build_collection(recipe, installed().registry), runs[0].folder)
    if size is None:
        return None
    known, total = _finished(runs), Cost(0.0, 0.0, 0.0)
    for run in runs:
        own = identities(run.stages)
        to_do = [stage for stage in run.stages if own[stage.name] not in known]
        known |= {own[stage.name] for stage in to_do}
        if to_do:
            cost = estimate_cost(to_do, planned_sizes(run.recipe, size), rates)
            total = Cost(
                total.seconds + cost.seconds,
                max(total.memory, cost.memory),
                total.disk + cost.disk,
                tuple(dict.fromkeys((*total.unknown, *cost.unknown))),
            )
    return total


def identities(stages: tuple[Stage[Any], ...]) -> dict[str, str]:
    """Return a hash of all that decides each stage, by name: its settings, and those of what it reads."""
    found: dict[str, str] = {}
    for stage in stages:
        read = {name: f"{found[one.stage]}/{one.path}" for name, one in stage.inputs.items() if not one.observed}
        found[stage.name] = stage.fingerprint(read)
    return found


def _finished(runs: Sequence[PlannedRun]) -> set[str]:
    """Return the identities of the stages that some run has finished."""
    return {identity for run in runs for identity in _finished_in(run)}


def _finished_in(run: PlannedRun) -> list[str]:
    if not run.folder.is_dir():
        return []
    own = identities(run.stages)
    return [own[found.stage.name] for found in survey(run.stages, run.folder) if found.is_finished]
