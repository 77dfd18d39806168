"""Running a plan: skip what stands, resume what was cut off, finish every stage by one atomic rename.

A stage writes into `RUN/.unfinished/STAGE` and is renamed to `RUN/STAGE` when its manifest is written, so that a
kill at any moment leaves either the whole stage or none of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock, Timeout

from drkit.core.read import read_recipe
from drkit.core.recipe import Recipe
from drkit.core.registry import Registry
from drkit.core.write import recipe_table, write_recipe
from drkit.errors import DrkitError
from drkit.runs import processes
from drkit.runs.folders import UNFINISHED, full_disk, publish, take_over, unfinished
from drkit.runs.manifest import (
    CHECKPOINTS,
    Manifest,
    content_hash,
    describe_files,
    read_manifest,
    versions,
    write_manifest,
)
from drkit.runs.progress import Progress, Silent
from drkit.runs.stage import Stage, StageRun

RECIPE = "recipe.toml"


def execute(
    stages: Sequence[Stage],
    run: Path,
    recipe: Recipe,
    *,
    registry: Registry,
    progress: Progress,
    redo: bool = False,
    reuse: Sequence[Path] = (),
) -> dict[str, Manifest]:
    """Run every stage that does not stand yet; returns the manifests by stage.

    `reuse` are other runs: a stage of theirs that had the very same inputs and settings is taken over (its files
    linked, or copied where the disk does not link), not made again.

    Of several processes (torchrun) the first does this, and the others join it in the trainings.

    Raises DrkitError where the folder holds a run of another recipe (unless `redo`), another process works in
    it, or the disk is full. Finished stages are never lost.
    """
    if processes.rank():
        return _help(stages, run, recipe, registry)
    with locked(run), processes.together():
        _claim(run, recipe, registry, redo=redo)
        done: dict[str, Manifest] = {}
        for stage in stages:
            contents = {name: manifest.content for name, manifest in done.items()}
            take_over(stage, run, stage.fingerprint(contents), reuse)
            done[stage.name] = _stage(stage, run, recipe, done, registry=registry, progress=progress)
        processes.tell(None)
        shutil.rmtree(run / UNFINISHED, ignore_errors=True)
        return done


def _help(stages: Sequence[Stage], run: Path, recipe: Recipe, registry: Registry) -> dict[str, Manifest]:
    """What the second process and those after it do; they have no manifests of their own."""
    named = {stage.name: stage for stage in stages}

    def make(name: str, folder: Path) -> None:
        stage = named[name]
        inputs = {need: run / need for need in stage.needs}
        stage.load()(StageRun(stage, folder, inputs, recipe, registry=registry, progress=Silent()))

    with processes.together():
        processes.help_along(make, run / UNFINISHED)
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


def _claim(run: Path, recipe: Recipe, registry: Registry, *, redo: bool) -> None:
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
        raise DrkitError(f"{run} is not empty and holds no run; choose another --run-dir")
    write_recipe(recipe, path)


def differences(old: Recipe, new: Recipe) -> list[str]:
    """`path: old -> new` for every setting in which two recipes differ (their names left out)."""
    before, after = _flat(recipe_table(old)), _flat(recipe_table(new))
    keys = sorted((before.keys() | after.keys()) - {"name"})
    return [f"{k}: {before.get(k)!r} -> {after.get(k)!r}" for k in keys if before.get(k) != after.get(k)]


def _flat(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = dict(enumerate(value)).items()
    else:
        return {path: value}
    return {k: v for key, item in items for k, v in _flat(item, f"{path}.{key}" if path else str(key)).items()}


def _stage(
    stage: Stage, run: Path, recipe: Recipe, done: dict[str, Manifest], *, registry: Registry, progress: Progress
) -> Manifest:
    fingerprint = stage.fingerprint({name: manifest.content for name, manifest in done.items()})
    standing = read_manifest(run / stage.name)
    if standing is not None and standing.fingerprint == fingerprint:
        progress.skip(stage.name, stage.summary)
        return standing
    whole = read_manifest(run / UNFINISHED / stage.name)
    if whole is not None and whole.fingerprint == fingerprint:  # cut off between its last word and its rename
        publish(run / UNFINISHED / stage.name, run / stage.name)
        progress.skip(stage.name, stage.summary)
        return whole
    folder = unfinished(stage, run, fingerprint)
    context = StageRun(
        stage=stage,
        folder=folder,
        inputs={name: run / name for name in stage.needs},
        recipe=recipe,
        registry=registry,
        progress=progress,
    )
    progress.begin(stage.name, stage.summary)
    started = time.perf_counter()
    with full_disk(stage.name, run):
        if stage.joint:
            (folder / CHECKPOINTS).mkdir(exist_ok=True)
            processes.tell(stage.name)
        metrics = stage.load()(context)
        files = describe_files(folder)
        manifest = Manifest(
            stage=stage.name,
            fingerprint=fingerprint,
            content=content_hash(files),
            inputs={name: done[name].content for name in stage.needs},
            settings=stage.settings,
            files=files,
            metrics=metrics,
            seconds=round(time.perf_counter() - started, 3),
            finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            versions=versions(),
        )
        write_manifest(manifest, folder)
        publish(folder, run / stage.name)
    progress.end(stage.name, manifest.seconds)
    return manifest
