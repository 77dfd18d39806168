"""Running a plan: keep what is finished, resume what was cut off, finish every stage by one atomic rename.

A stage writes into `RUN/.unfinished/STAGE` and is renamed to `RUN/STAGE` when its manifest is written, so that a
kill at any moment leaves either the whole stage or none of it.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from drkit.core import processes
from drkit.core.files import CHECKPOINTS, write_text
from drkit.core.progress import Progress, Silent
from drkit.core.registry import Registry
from drkit.errors import DrkitError
from drkit.recipe.read import read_recipe
from drkit.recipe.schema import Recipe
from drkit.recipe.write import json_text, write_recipe
from drkit.runs.manifest import (
    IDENTITY,
    LAYOUT,
    Manifest,
    describe_files,
    digest,
    read_manifest,
    versions,
    write_manifest,
)
from drkit.runs.stage import Stage, StageRun, lasting_settings
from drkit.runs.survey import UNFINISHED, State, attempted, changes, contents, inspect_stage

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors and torch report a full disk in words alone.
_WORDS_OF_NO_ROOM = ("No space left", "File too large", "PytorchStreamWriter failed")


def take_over(stage: Stage[Any], run: Path, fingerprint: str, reuse: Sequence[Path]) -> None:
    """Put the first finished stage of another run with this fingerprint in place, unless the run has it already."""
    own = read_manifest(run / stage.name)
    if own is not None and own.fingerprint == fingerprint:
        return
    for other in reuse:
        found = read_manifest(other / stage.name)
        if found is not None and found.fingerprint == fingerprint:
            folder = run / UNFINISHED / stage.name
            shutil.rmtree(folder, ignore_errors=True)
            with full_disk(stage.name, run):
                shutil.copytree(other / stage.name, folder, copy_function=_link)
            publish(folder, run / stage.name)
            return


def _link(source: str, target: str) -> None:
    """A finished stage's files never change, so two runs may share them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def unfinished(stage: Stage[Any], run: Path, identity: Mapping[str, Any]) -> Path:
    """Return the folder a stage works in; an interrupted attempt is kept only where the stage can resume from it."""
    folder = run / UNFINISHED / stage.name
    ours = stage.spec.resumable and attempted(folder) == digest(identity)
    with full_disk(stage.name, run):
        if folder.exists() and not ours:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / IDENTITY, json_text(identity))
    return folder


def publish(folder: Path, final: Path) -> None:
    """Put a finished folder in place by renames; the stage that it replaces goes only when the new one is in.

    What served the attempt alone goes first: its manifest is written, so a kill here loses nothing.
    """
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    (folder / IDENTITY).unlink(missing_ok=True)
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    folder.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    handle = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def full_disk(stage: str, run: Path) -> Iterator[None]:
    """Turn whatever a library raises on a full disk into one message (they differ: OSError, SafetensorError ..)."""
    try:
        yield
    except DrkitError:
        raise
    except Exception as error:
        if not _is_full(error, run):
            raise
        raise DrkitError(
            f"the disk is full (or a file may not grow further), in stage {stage}; free some space and run "
            f"`drkit run {run}`: finished stages are kept"
        ) from error


def _is_full(error: Exception, run: Path) -> bool:
    code, text = getattr(error, "errno", None), str(error)
    known = code in _NO_ROOM or any(words in text for words in _WORDS_OF_NO_ROOM)
    return known or shutil.disk_usage(run).free < 2**16


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
    with locked(run), processes.group():
        claim(run, recipe, registry, redo=redo)
        done: dict[str, Manifest] = {}
        for stage in stages:
            take_over(stage, run, stage.fingerprint(contents(stage, done)), reuse)
            done[stage.name] = _finish(stage, run, done, registry=registry, progress=progress)
        _announce(None)
        shutil.rmtree(run / UNFINISHED, ignore_errors=True)
        return done


def _work_along(stages: Sequence[Stage[Any]], run: Path, registry: Registry) -> dict[str, Manifest]:
    """Take part in joint stages as the second process or a later one; returns no manifests.

    What this process writes goes to a folder that is thrown away: the first process' results are the run's.
    """
    named = {stage.name: stage for stage in stages}
    with processes.group():
        while (name := processes.broadcast(None)) is not None:
            with tempfile.TemporaryDirectory() as scratch:
                # Checkpoints are shared: each process keeps its random state there.
                shared = (run / UNFINISHED / name / CHECKPOINTS).resolve()
                Path(scratch, CHECKPOINTS).symlink_to(shared)
                _run(named[name], Path(scratch), run, registry=registry, progress=Silent())
    return {}


def _announce(stage: str | None) -> None:
    """Tell the other processes which joint stage begins; None: the run is over."""
    if processes.count() > 1:
        processes.broadcast(stage)


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
            _announce(stage.name)
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
