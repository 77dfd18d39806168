"""Running a plan: keep what is finished, resume what was cut off, finish every stage by one atomic rename.

A stage writes into `RUN/.unfinished/STAGE` and is renamed to `RUN/STAGE` when its manifest is written, so that a
kill at any moment leaves either the whole stage or none of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from drkit.core.read import read_recipe
from drkit.core.recipe import Recipe
from drkit.core.registry import Registry
from drkit.core.write import write_recipe
from drkit.errors import DrkitError
from drkit.runs import processes
from drkit.runs.folders import full_disk, publish, take_over, unfinished
from drkit.runs.manifest import (
    CHECKPOINTS,
    LAYOUT,
    Manifest,
    describe_files,
    read_manifest,
    versions,
    write_manifest,
)
from drkit.runs.progress import Progress, Silent
from drkit.runs.stage import Stage, StageRun, lasting_settings
from drkit.runs.survey import UNFINISHED, State, changes, contents, inspect_stage

RECIPE = "recipe.toml"


def execute(
    stages: Sequence[Stage[Any]],
    run: Path,
    recipe: Recipe,
    *,
    registry: Registry,
    progress: Progress,
    redo: bool = False,
    reuse: Sequence[Path] = (),
) -> dict[str, Manifest]:
    """Run every stage that is not finished yet; returns the manifests by stage.

    `reuse` are other runs: a stage of theirs that had the very same inputs and settings is taken over (its files
    linked, or copied where the disk does not link), not made again.

    Of several processes (torchrun) the first does this, and the others join it in the joint stages.

    Raises DrkitError where the folder holds a run of another recipe (unless `redo`) or of another layout, another
    process works in it, or the disk is full. Finished stages are never lost.
    """
    if processes.rank():
        return _work_along(stages, run, registry)
    with locked(run), processes.together():
        claim(run, recipe, registry, redo=redo)
        done: dict[str, Manifest] = {}
        for stage in stages:
            take_over(stage, run, stage.fingerprint(contents(stage, done)), reuse)
            done[stage.name] = _finish(stage, run, done, registry=registry, progress=progress)
        processes.announce(None)
        shutil.rmtree(run / UNFINISHED, ignore_errors=True)
        return done


def _work_along(stages: Sequence[Stage[Any]], run: Path, registry: Registry) -> dict[str, Manifest]:
    """Take part in joint stages as the second process or a later one; returns no manifests."""
    named = {stage.name: stage for stage in stages}

    def make(name: str, folder: Path) -> None:
        _run(named[name], folder, run, registry=registry, progress=Silent())

    with processes.together():
        processes.worker_loop(make, run / UNFINISHED)
    return {}


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the run's lock; DrkitError where another process has it, or the folder cannot be made."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise DrkitError(f"another process is working in {run}; wait for it, or choose another --run-dir") from None
    except OSError as error:
        raise DrkitError(f"cannot write to {run}: {error.strerror}; choose another --run-dir") from error
    try:
        yield
    finally:
        lock.release()


def claim(run: Path, recipe: Recipe, registry: Registry, *, redo: bool) -> None:
    """Write the recipe into a new run; an older, different one is only replaced when asked."""
    path = run / RECIPE
    if path.exists() and not redo:
        changed = differences(read_recipe(path, registry), recipe)
        if changed:
            listed = "\n".join(f"  - {line}" for line in changed[:20])
            raise DrkitError(
                f"{run} holds a run of another recipe:\n{listed}\n"
                f"choose another --run-dir, or give --redo to make again the stages that this changes"
            )
    if not path.exists() and any(p.name not in (".lock", UNFINISHED) for p in run.iterdir()):
        raise DrkitError(f"{run} is not empty and not a run (no {RECIPE}); choose another --run-dir")
    write_recipe(recipe, path)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """Return `path: old -> new` for every setting in which two recipes differ, names and observing settings aside."""
    before, after = ({k: v for k, v in lasting_settings(one).items() if k != "name"} for one in (old, new))
    return changes(before, after)


def _finish(
    stage: Stage[Any], run: Path, done: Mapping[str, Manifest], *, registry: Registry, progress: Progress
) -> Manifest:
    """Return the manifest of a stage: of the finished one, or after making it."""
    known = contents(stage, done)
    found = inspect_stage(stage, run, known)
    if found.state is State.KEPT and found.manifest is not None:
        progress.skip(stage.name, stage.summary)
        return found.manifest
    identity = stage.identity(known)
    whole = read_manifest(run / UNFINISHED / stage.name)
    if whole is not None and whole.fingerprint == stage.fingerprint(known):  # cut off just before its rename
        publish(run / UNFINISHED / stage.name, run / stage.name)
        progress.skip(stage.name, stage.summary)
        return whole
    folder = unfinished(stage, run, identity)
    progress.begin(stage.name, stage.summary, "" if found.state is State.TO_DO else found.words)
    started = time.perf_counter()
    with full_disk(stage.name, run):
        if stage.spec.joint:
            (folder / CHECKPOINTS).mkdir(exist_ok=True)
            processes.announce(stage.name)
        metrics = _run(stage, folder, run, registry=registry, progress=progress)
        manifest = Manifest(
            layout=LAYOUT,
            stage=stage.spec.name,
            stage_version=stage.spec.version,
            fingerprint=stage.fingerprint(known),
            settings=identity["settings"],
            inputs=identity["inputs"],
            sources=identity["sources"],
            origins={name: str(part) for name, part in stage.inputs.items() if not part.observed},
            files=describe_files(folder),
            metrics=metrics,
            seconds=round(time.perf_counter() - started, 3),
            finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            versions=versions(),
            records=stage.spec.records,
        )
        write_manifest(manifest, folder)
        publish(folder, run / stage.name)
    progress.end(stage.name, manifest.seconds)
    return manifest


def _run(stage: Stage[Any], folder: Path, run: Path, *, registry: Registry, progress: Progress) -> Mapping[str, Any]:
    inputs = {name: run / part.stage / part.path for name, part in stage.inputs.items()}
    return stage.spec.run(StageRun(stage.name, stage.settings, inputs, folder, registry, progress))
