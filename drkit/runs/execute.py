"""Execute a plan: keep finished stages, resume interrupted ones, and finish every stage with one atomic rename.

For each stage, in the plan's order:
1. **Fingerprint** it: a hash of its settings, of the hashes of its inputs, and of the code that makes it. A finished
   stage of the run with this fingerprint is kept. One of another run is taken over by hard links (`take_over`).
2. **Verify the inputs.** Files that the stage reads are compared with the hashes in the manifests, each once in a run.
   The stage of a damaged or pruned file is made again first, and must give the same content.
3. **Make** it in `RUN/.unfinished/STAGE`, where an interrupted attempt with the same fingerprint goes on.
4. **Publish** it: write the manifest with the hash of each new file, then rename the folder to `RUN/STAGE`. A kill at
   any moment leaves either the whole stage or nothing of it.

With several processes, the first does this; the others join the stages that train, and carry out tasks of the rest.

Price beyond the stages' own work: every file is hashed once when it is made, and once in a later execution that reads
it, O(bytes) at the speed of BLAKE2b; in memory, one entry for each file. An execution in which every stage is finished
reads manifests and the sizes of files, no content.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from attrs import field, frozen
from filelock import FileLock, Timeout

from drkit.core import processes
from drkit.core.engine import TASKS, Engine, GroupEngine, LocalEngine, is_local, join_tasks
from drkit.core.files import (
    CHECKPOINTS,
    IDENTITY,
    digest,
    find_damages,
    is_temporary,
    link_or_copy,
    remove_folder,
    remove_temporaries,
    share_files,
    sync,
    write_json,
)
from drkit.core.process_state import restored_process_state
from drkit.core.processes import watch_memory
from drkit.core.progress import Progress, Silent
from drkit.core.protocols import Collection
from drkit.core.registry import Registry
from drkit.core.spec import Kind, resolve
from drkit.core.types import CollectionSize
from drkit.errors import DrkitError, storage_failure
from drkit.recipe.schema import Recipe
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import read_recipe, write_recipe
from drkit.runs.costs import estimated_size, planned_sizes, size_as_read, unit_of
from drkit.runs.manifest import (
    LAYOUT,
    PROCESSES,
    STALE,
    Manifest,
    damages,
    describe_files,
    load_manifest,
    machine,
    read_manifest,
    read_stale,
    recorded_processes,
    refuse_link,
    versions,
    write_manifest,
)
from drkit.runs.stage import Stage, StageOutput, StageRun, lasting_settings
from drkit.runs.stale import keep_stale as keep_stale_stages
from drkit.runs.survey import (
    UNFINISHED,
    State,
    attempt_fingerprint,
    changes,
    input_hashes,
    inspect_stage,
    pruned_inputs,
)
from drkit.runs.work import Work


def take_over(
    stage: Stage[Any], run: Path, fingerprint: str, reuse: Sequence[Path], note: Callable[[str], None]
) -> None:
    """Copy a finished stage with this fingerprint from another run, unless this run already has it.

    The content of its files is compared with their hashes first. note: called with why a damaged stage is not reused.
    """
    current = read_manifest(run / stage.name)
    if current is not None and current.fingerprint == fingerprint:
        return
    for other in reuse:
        if stage.scales_with_processes and (recorded_processes(other) or 1) != processes.batch_processes():
            continue  # trained on batches of another size
        found = load_manifest(other / stage.name)
        if found is None or found.fingerprint != fingerprint or found.stale:
            continue
        if damaged := list(damages(found, other / stage.name, verify=True)):
            note(f"{other / stage.name} is not reused: {damaged[0]}")
            continue
        folder = run / UNFINISHED / stage.name
        with storage_errors(stage.name, run):
            remove_folder(folder)
            shutil.copytree(other / stage.name, folder, copy_function=link_or_copy)
            for inner in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
                inner.chmod(inner.stat().st_mode | stat.S_IRWXU)  # the other run may only be read; this one is written
        publish(folder, run / stage.name)
        return


def prepare_attempt(stage: Stage[Any], run: Path, identity: Mapping[str, Any]) -> Path:
    """Return the folder in which a stage works; keeps an interrupted attempt only if the stage can resume it."""
    folder = run / UNFINISHED / stage.name
    ours = stage.spec.resumable and attempt_fingerprint(folder) == digest(identity)
    with storage_errors(stage.name, run):
        if not ours:
            remove_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        remove_temporaries(folder)
        write_json(folder / IDENTITY, identity)
    return folder


def publish(folder: Path, final: Path) -> None:
    """Move a finished folder into the run by renames; the stage that it replaces is removed last.

    Files that only the attempt needed are removed first: the manifest is written, so a kill here loses nothing. Raises
    OSError if they cannot be removed.
    """
    old = folder.with_name(f"{folder.name}.old")
    for unneeded in (folder / CHECKPOINTS, old):
        if unneeded.exists():
            shutil.rmtree(unneeded)  # in place: a temporary folder would be published
    for name in (IDENTITY, STALE):
        (folder / name).unlink(missing_ok=True)
    if final.exists():
        final.rename(old)
    folder.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    sync(final.parent)


@contextmanager
def storage_errors(stage: str, run: Path) -> Iterator[None]:
    """Turn any library's exception for a full or failing disk (OSError, SafetensorError, ..) into one message."""
    try:
        yield
    except DrkitError:
        raise
    except Exception as error:
        is_full = shutil.disk_usage(run).free < 2**16
        failure = storage_failure(error) or (("the disk is full", "free some space") if is_full else None)
        if failure is None:
            raise
        what, remedy = failure
        raise DrkitError(
            f"{what} in stage {stage}; {remedy} and run `drkit run {run}`; finished stages are kept"
        ) from error


# The recipe that the run's stages are made with: RECIPE is there to be read, and may be edited by hand.
RECORDED = ".recipe.toml"
# Held by the process that works in the run.
_LOCK = ".lock"


def execute(
    stages: Sequence[Stage[Any]],
    run: Path,
    recipe: Recipe,
    *,
    registry: Registry,
    progress: Progress,
    redo: bool = False,
    reuse: Sequence[Path] = (),
    keep_stale: Sequence[str] = (),
    engine: Engine | None = None,
    locks: Path | None = None,
    collection: Collection | None = None,
) -> dict[str, Manifest]:
    """Run every stage that is not finished yet; returns the manifests by stage.

    engine: where the data work of stages is done; in this process if None. It changes no result. reuse: other runs. A
    stage of theirs with the same inputs and settings is reused (its files are hard-linked, or copied if that fails)
    instead of running again. keep_stale: names of stages that are kept although a plugin's code or a library changed,
    see `drkit.runs.stale`. locks: a folder that runs beside this one lock equal stages in, so that one of them makes
    each, and the others, which have it in `reuse`, wait for it. collection: that of the plan, whose sizes the work of
    stages is counted from; built if None.

    With several processes (torchrun), the first runs the plan; the others join it in the joint stages, and carry out
    tasks of the other stages. Batches stay as large as those of the processes that the run began with, whatever their
    number now.

    Raises DrkitError if the folder contains a run of another recipe (unless `redo`) or of another layout, another
    process works in it, or the disk is full or failing. Finished stages are never lost.
    """
    if processes.rank():
        return _join_stages(stages, run, registry)
    _check_run_folder(run)
    with locked(run), processes.group():
        record_recipe(run, recipe, registry, redo=redo)
        keep_stale_stages(stages, run, keep_stale)
        work = _Work(
            {stage.name: stage for stage in stages}, run, registry, progress, _engine(engine), recipe, collection
        )
        with processes.batches_of(processes.broadcast(_record_processes(run, progress))):
            for stage in stages:
                fingerprint = stage.fingerprint(input_hashes(stage, work.done))
                with _made_once(fingerprint, locks):
                    take_over(stage, run, fingerprint, reuse, progress.note)
                    work.finish(stage)
        processes.broadcast(None)  # the run is over
        shutil.rmtree(run / UNFINISHED, ignore_errors=True)
        return work.done


def _engine(given: Engine | None) -> Engine:
    """Return where tasks are carried out: with several processes, in all of them, unless it is another engine."""
    shares = processes.process_count() > 1 and is_local(given)
    return GroupEngine() if shares else given or LocalEngine()


@contextmanager
def _made_once(fingerprint: str, locks: Path | None) -> Iterator[None]:
    """Hold the lock of a stage for the length of a block, so that no other run makes an equal stage meanwhile."""
    if locks is None:
        yield
        return
    locks.mkdir(parents=True, exist_ok=True)
    with FileLock(locks / fingerprint):
        yield


def _join_stages(stages: Sequence[Stage[Any]], run: Path, registry: Registry) -> dict[str, Manifest]:
    """Join the joint stages and the tasks as the second or a later process; returns no manifests.

    This process writes to a temporary folder; the run keeps the results of the first process.
    """
    by_name = {stage.name: stage for stage in stages}
    with processes.group(), processes.batches_of(processes.broadcast(None)):
        while (name := processes.broadcast(None)) is not None:
            if name == TASKS:
                join_tasks()
                continue
            with tempfile.TemporaryDirectory() as scratch:
                # Checkpoints are shared: each process keeps its random state there.
                shared = (run / UNFINISHED / name / CHECKPOINTS).resolve()
                Path(scratch, CHECKPOINTS).symlink_to(shared)
                stage = by_name[name]
                _carry_out(stage, Path(scratch), run, registry, Silent(), LocalEngine())
                processes.barrier()
    return {}


def _check_run_folder(run: Path) -> None:
    """Raise DrkitError if a folder has files and is not a run; nothing is written into it then."""
    ours = (_LOCK, PROCESSES, RECIPE, RECORDED, UNFINISHED)
    found = run.iterdir() if run.is_dir() else ()
    # A kill during the first write of the recipe leaves a temporary file.
    others = [path for path in found if path.name not in ours and not is_temporary(path)]
    if others and not (run / RECIPE).is_file():
        raise DrkitError(f"{run} is not empty and not a run (no {RECIPE}); choose another --run-dir")


def _refuse_links(run: Path) -> None:
    """Raise DrkitError if something that drkit removes or replaces in a run is a link, which may lead out of it."""
    unfinished = run / UNFINISHED
    for path in (*(run.iterdir() if run.is_dir() else ()), *unfinished.rglob("*")):
        refuse_link(path)


@contextmanager
def locked(run: Path, remedy: str = "choose another --run-dir") -> Iterator[None]:
    """Hold the run's lock; remedy: what to do if that fails, in an error.

    Raises DrkitError if another process has it, the folder cannot be created, or something in it is a link.
    """
    _refuse_links(run)
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = FileLock(run / _LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise DrkitError(f"another process is working in {run}; wait for it, or {remedy}") from None
    except OSError as error:
        raise DrkitError(f"cannot write to {run}: {error.strerror}; {remedy}") from error
    try:
        yield
    finally:
        lock.release()


def record_recipe(run: Path, recipe: Recipe, registry: Registry, *, redo: bool) -> None:
    """Write the recipe into the run; raises DrkitError if the run was made with a different one, unless `redo`."""
    path, recorded = run / RECIPE, run / RECORDED
    if path.exists() and not redo:
        recipes = read_recipe(recorded if recorded.exists() else path, registry), recipe
        before, after = ({k: v for k, v in lasting_settings(one).items() if k != "name"} for one in recipes)
        changed = changes(before, after)
        if changed:
            listed = "\n".join(f"  - {line}" for line in changed[:20])
            raise DrkitError(
                f"{run} contains a run of another recipe:\n{listed}\n"
                f"choose another --run-dir, or use --redo to run the affected stages again"
            )
    write_recipe(recipe, recorded)
    write_recipe(recipe, path)
    for name in (RECIPE, RECORDED):  # of a process that was killed here
        for temporary in run.glob(f".{name}.*.tmp"):
            temporary.unlink()


def _record_processes(run: Path, progress: Progress) -> int:
    """Return the number of processes that the run began with, which is recorded if it begins now."""
    began = recorded_processes(run)
    if began is None:
        write_json(run / PROCESSES, processes.process_count())
    elif began != processes.process_count():
        progress.note(
            f"batches stay those of {began} process{'es' * (began > 1)}, with which this run began; "
            f"{processes.process_count()} now divide{'s' * (processes.process_count() == 1)} them"
        )
    return began or processes.process_count()


@frozen(eq=False, slots=False)
class _Work:
    """The work of the first process: all stages by name, and the manifests of those done so far.

    intact: the files (stage, name) whose content this process has written, or compared with its hash.
    """

    stages: Mapping[str, Stage[Any]]
    run: Path
    registry: Registry
    progress: Progress
    engine: Engine
    recipe: Recipe
    collection: Collection | None
    done: dict[str, Manifest] = field(factory=dict)
    intact: set[tuple[str, str]] = field(factory=set)

    def finish(self, stage: Stage[Any]) -> None:
        """Run a stage unless it is finished."""
        found = inspect_stage(stage, self.run, input_hashes(stage, self.done))
        if found.is_finished and found.manifest is not None:
            self.progress.skip(stage.name, stage.summary)
            self.done[stage.name] = found.manifest
        else:
            self._make(stage, "" if found.state is State.TO_DO else found.summary)

    def _lost_inputs(self, stage: Stage[Any]) -> dict[str, str]:
        """Return the stages whose files a stage reads and that must be made again first, each with the reason."""
        lost = dict.fromkeys(pruned_inputs(stage, self.done), f"its files were pruned, and {stage.name} reads them")
        for output in stage.inputs.values():
            if output.stage not in lost and (damage := self._find_damage(output)):
                lost[output.stage] = f"{damage}, and {stage.name} reads it"
        return lost

    def _find_damage(self, output: StageOutput) -> str:
        """Return what is wrong with the content of an input, or nothing; a file is read once in a run."""
        for name, entry in self.done[output.stage].files_at(output.path).items():
            if (output.stage, name) not in self.intact:
                for damage in find_damages({name: entry}, self.run / output.stage, verify=True):
                    return damage
                self.intact.add((output.stage, name))
        return ""

    def _restore(self, stage: Stage[Any], reason: str) -> None:
        """Run a finished stage again, because a file was pruned or damaged; raises DrkitError if the result differs."""
        before = self.done[stage.name]
        self._make(stage, f"again because {reason}")
        if self.done[stage.name].content() != before.content():
            raise DrkitError(
                f"{stage.name} was made again because {reason}; the result is not the same as before "
                f"(see the versions in `drkit status {self.run}`). Stages that were made from the old one run again "
                f"with `drkit run {self.run}`."
            )

    def _make(self, stage: Stage[Any], reason: str) -> None:
        for name, lost in self._lost_inputs(stage).items():
            self._restore(self.stages[name], lost)
        run, identity = self.run, stage.identity(input_hashes(stage, self.done))
        written = load_manifest(run / UNFINISHED / stage.name)
        is_ours = written is not None and written.fingerprint == digest(identity)  # interrupted before its rename
        if written and is_ours and not any(damages(written, run / UNFINISHED / stage.name, verify=True)):
            publish(run / UNFINISHED / stage.name, run / stage.name)
            self.progress.skip(stage.name, stage.summary)
            self._record(stage, written)
            return
        goes_on = stage.spec.resumable and attempt_fingerprint(run / UNFINISHED / stage.name) == digest(identity)
        folder = prepare_attempt(stage, run, identity)
        work = Work() if goes_on else self._work(stage)  # before hours of work, which a failure here would lose
        self.progress.begin(stage.name, stage.summary, reason)
        started, peaks = time.perf_counter(), watch_memory()
        with storage_errors(stage.name, run):
            if stage.spec.joint:
                (folder / CHECKPOINTS).mkdir(exist_ok=True)
                processes.broadcast(stage.name)
            is_shared = stage.spec.joint and processes.process_count() > 1  # all processes are in this stage
            engine = LocalEngine() if is_shared else self.engine
            metrics = _carry_out(stage, folder, run, self.registry, self.progress, engine)
            if stage.spec.joint:
                processes.barrier()  # others may still read the checkpoints, which `publish` removes
            seconds = time.perf_counter() - started
            share_files(folder)
            manifest = _manifest(stage, identity, folder, metrics, seconds, peaks(), work)
            write_manifest(manifest, folder)
            publish(folder, run / stage.name)
        self.progress.end(stage.name, manifest.seconds)
        self._record(stage, manifest)

    def _work(self, stage: Stage[Any]) -> Work:
        """Return the counted work of a stage, which its seconds are recorded for; none without a known size."""
        if stage.spec.work is None or self._size is None:
            return Work()
        read = self.done.get("collection")
        size = size_as_read(self._size, read) if read else self._size
        return stage.spec.work(stage, planned_sizes(self.recipe, size))

    @cached_property
    def _size(self) -> CollectionSize | None:
        chosen = self.recipe.collection
        try:
            built = self.collection
            if built is None:
                built = self.registry.build(Kind.COLLECTION, chosen.use, chosen.config)
            return estimated_size(self.recipe, built)
        except Exception:  # which the stage of the collection reports
            return None

    def _record(self, stage: Stage[Any], manifest: Manifest) -> None:
        self.done[stage.name] = manifest
        self.intact.update((stage.name, name) for name in manifest.files)


def _manifest(
    stage: Stage[Any],
    identity: Mapping[str, Any],
    folder: Path,
    metrics: Mapping[str, Any],
    seconds: float,
    memory: Mapping[str, int],
    work: Work,
) -> Manifest:
    """Return the record of a stage that has just written `folder`."""
    return Manifest(
        layout=LAYOUT,
        stage=stage.spec.name,
        stage_version=stage.spec.version,
        fingerprint=digest(identity),
        settings=identity["settings"],
        inputs=identity["inputs"],
        sources=identity["sources"],
        origins={name: str(output) for name, output in stage.inputs.items() if not output.observed},
        files=describe_files(folder),
        metrics=metrics,
        seconds=round(seconds, 3),
        finished=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions=versions(),
        machine=machine(),
        memory=memory,
        amount=work.amount,
        unit=unit_of(work),
        records=stage.spec.records,
        code=identity.get("code", {}),
        packages=identity.get("packages", {}),
        stale=read_stale(folder),
    )


def _carry_out(
    stage: Stage[Any], folder: Path, run: Path, registry: Registry, progress: Progress, engine: Engine
) -> Mapping[str, Any]:
    """Import the stage's function and let it write into `folder`; returns the metrics.

    Its parts may be code of others: paths are absolute, and what it changes of the process is restored, with a note.
    """
    function: Callable[[StageRun[Any]], Mapping[str, Any]] = resolve(stage.spec.run)
    inputs = {name: (run / output.stage / output.path).absolute() for name, output in stage.inputs.items()}
    with restored_process_state() as changed:
        metrics = function(StageRun(stage.name, stage.settings, inputs, folder.absolute(), registry, progress, engine))
    if changed:
        progress.note(f"a part in {stage.name} changed {' and '.join(changed)}; drkit has restored it")
    return metrics
