"""The state of a run: for each stage of a plan, whether it is kept, to do, resumed, or repeated, and why.

`drkit.runs.execute` acts on it stage by stage; `--dry-run` and `drkit status` show it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from drkit.core.files import CHECKPOINTS, IDENTITY, MANIFEST, digest, read_json
from drkit.encoders.declarations import CONFIG
from drkit.encoders.folder import is_cross_encoder
from drkit.errors import DrkitError
from drkit.runs.manifest import Manifest, damages, load_manifest, read_manifest
from drkit.runs.stage import Stage
from drkit.train.resuming import checkpoints, is_complete, step_of

UNFINISHED = ".unfinished"


class State(str, Enum):
    """What happens to a stage when the run continues."""

    KEPT = "kept"
    PRUNED = "pruned"
    TO_DO = "to do"
    RESUMED = "resumed"
    AGAIN = "again"

    def __str__(self) -> str:
        return self.value


@frozen
class Finding:
    """One stage's state; reasons: why it runs again, one line each; step: the step that a training resumes from."""

    stage: Stage[Any]
    state: State
    reasons: tuple[str, ...] = ()
    step: int | None = None
    manifest: Manifest | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the stage is finished and does not run again."""
        return self.state in (State.KEPT, State.PRUNED)

    @property
    def summary(self) -> str:
        """The state in one line: `again because encoder.pooling: mean -> cls`."""
        if self.state is State.PRUNED and self.manifest is not None:
            files = len(self.manifest.pruned)
            return f"pruned, {files} file{'s' * (files > 1)} removed by `drkit prune`"
        if self.state is State.RESUMED:
            return "resumed" if self.step is None else f"resumed from step {self.step:,}"
        if self.state is State.KEPT and self.manifest is not None and self.manifest.stale:
            return f"kept, although {'; '.join(self.manifest.stale)}"
        return f"{self.state} because {'; '.join(self.reasons)}" if self.reasons else str(self.state)


def survey(stages: Sequence[Stage[Any]], run: Path, *, verify: bool = False) -> Iterator[Finding]:
    """Yield a finding for each stage, in order, without changing anything. verify: compare the content of every file.

    A stage that depends on a repeated one may still be kept in the end, if its inputs turn out the same. A pruned stage
    runs again if a stage that is not finished reads its removed files.
    """
    found = {finding.stage.name: finding for finding in _inspect_all(stages, run, verify=verify)}
    for finding in reversed(list(found.values())):
        if not found[finding.stage.name].is_finished:
            manifests = {name: one.manifest for name, one in found.items() if one.is_finished and one.manifest}
            for name in pruned_inputs(finding.stage, manifests):
                reasons = (f"its files were pruned, and {finding.stage.name} reads them",)
                found[name] = evolve(found[name], state=State.AGAIN, reasons=reasons)
    yield from found.values()


def pruned_inputs(stage: Stage[Any], done: Mapping[str, Manifest]) -> list[str]:
    """Return the stages that a stage reads removed files of; done: manifests of finished stages, by name."""
    read = [output for output in stage.inputs.values() if output.stage in done]
    return list(dict.fromkeys(one.stage for one in read if done[one.stage].has_pruned(one.path)))


def _inspect_all(stages: Sequence[Stage[Any]], run: Path, *, verify: bool) -> Iterator[Finding]:
    kept: dict[str, Manifest] = {}
    for stage in stages:
        pending = [name for name in stage.needs if name not in kept]
        found = (
            inspect_pending(stage, run, pending)
            if pending
            else inspect_stage(stage, run, input_hashes(stage, kept), verify=verify)
        )
        if found.is_finished and found.manifest is not None:
            kept[stage.name] = found.manifest
        yield found


def input_hashes(stage: Stage[Any], done: Mapping[str, Manifest]) -> dict[str, str]:
    """Return the content hash of each input of a stage, by name; done: the manifests of the stages that it needs."""
    return {name: done[one.stage].content(one.path) for name, one in stage.inputs.items() if not one.observed}


def inspect_stage(stage: Stage[Any], run: Path, hashes: Mapping[str, str], *, verify: bool = False) -> Finding:
    """Return the finding of a stage whose inputs are all finished; hashes: their content hashes, by input."""
    fingerprint = stage.fingerprint(hashes)
    manifest = load_manifest(run / stage.name)
    is_same = manifest is not None and manifest.fingerprint == fingerprint
    damaged = tuple(damages(manifest, run / stage.name, verify=verify)) if manifest is not None else ()
    if is_same and not damaged:
        return Finding(stage, State.PRUNED if manifest and manifest.pruned else State.KEPT, manifest=manifest)
    if stage.spec.resumable and attempt_fingerprint(run / UNFINISHED / stage.name) == fingerprint:
        saved = [path for path in checkpoints(run / UNFINISHED / stage.name / CHECKPOINTS) if is_complete(path)]
        return Finding(stage, State.RESUMED, step=step_of(saved[-1]) if saved else None)
    if manifest is None and (run / stage.name / MANIFEST).is_file():
        return Finding(stage, State.AGAIN, (f"its {MANIFEST} is damaged",))
    if manifest is None:
        return Finding(stage, State.TO_DO)
    return Finding(stage, State.AGAIN, damaged if is_same else tuple(_differences(stage, manifest, hashes)))


def inspect_pending(stage: Stage[Any], run: Path, pending: Sequence[str]) -> Finding:
    """Return the finding of a stage that needs unfinished stages (`pending`)."""
    manifest = load_manifest(run / stage.name)
    if manifest is None:
        return Finding(stage, State.TO_DO)
    changed = tuple(_differences(stage, manifest, None))
    return Finding(stage, State.AGAIN, changed or (f"{' and '.join(pending)} may change",))


def attempt_fingerprint(folder: Path) -> str:
    """Return the fingerprint of the stage for which an unfinished folder was started; empty if unknown."""
    try:
        return digest(read_json(folder / IDENTITY, ""))
    except DrkitError:
        return ""


def _differences(stage: Stage[Any], old: Manifest, hashes: Mapping[str, str] | None) -> Iterator[str]:
    """Yield the differences that make a finished stage run again; hashes: as in `inspect_stage`, None if unknown."""
    new = stage.identity(hashes if hashes is not None else dict.fromkeys(stage.inputs, ""))
    if (old.stage, old.stage_version) != (new["stage"], new["version"]):
        yield f"stage: {old.stage} version {old.stage_version} -> {new['stage']} version {new['version']}"
    yield from changes(old.settings, json.loads(json.dumps(new["settings"])))
    yield from (f"{name}: files changed" for name, state in new["sources"].items() if old.sources.get(name) != state)
    origins = {name: str(output) for name, output in stage.inputs.items() if not output.observed}
    yield from changes(old.origins, origins)
    yield from code_changes(stage, old.code, old.packages)
    if hashes is not None:
        same = [name for name in origins if old.origins.get(name) == origins[name]]
        yield from (f"{origins[name]} changed" for name in same if old.inputs.get(name) != hashes[name])


def code_changes(stage: Stage[Any], files: Mapping[str, str], packages: Mapping[str, str]) -> list[str]:
    """Return a line for each file of a plugin and each package that is not as it was when the stage was made."""
    now = stage.code.files
    changed = [name for name in sorted(files.keys() | now.keys()) if files.get(name) != now.get(name)]
    fates = ("is gone" if name not in now else "changed" if name in files else "is new" for name in changed)
    return [*(f"{name} {fate}" for name, fate in zip(changed, fates, strict=True)), *changes(packages, stage.packages)]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return `name: old -> new` for every name whose values differ.

    >>> changes({"a": 1, "b": 2, "c": "x"}, {"a": 1, "b": 3, "d": True})
    ['b: 2 -> 3', 'c: x -> not set', 'd: not set -> true']
    """
    names = sorted(old.keys() | new.keys())
    return [f"{n}: {_shown(old, n)} -> {_shown(new, n)}" for n in names if old.get(n) != new.get(n)]


def _shown(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if value is None:
        return "not set"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def last_checkpoint(run: Path) -> Path:
    """Return the folder of the training that a run exports, or else of the last one it finished.

    Raises DrkitError if no training is finished.
    """
    folder, passed = run / "encoder", set[Path]()
    while exported := read_manifest(folder):  # an encoder that is exported as it is was itself made from a checkpoint
        if "from" not in exported.metrics:
            return folder
        passed.add(folder)
        folder = run / str(exported.metrics["from"])
        if folder in passed or folder.parent != run:
            raise DrkitError(
                f"the manifests of {run} do not say which training was exported ({folder.name} again); give one of its "
                f"checkpoints, such as {run / 'retriever-1'}"
            )
    finished = {folder: time for folder in sorted(run.iterdir()) if (time := _finished_training(folder))}
    if not finished:
        raise DrkitError(f"{run} has no finished training; resume it with `drkit run {run}`")
    return max(finished, key=lambda folder: finished[folder])


def _finished_training(folder: Path) -> str:
    """Return when a stage that trains an encoder was finished; empty for any other stage, and for a kept checkpoint."""
    manifest = read_manifest(folder)
    if manifest is None or "kept" in manifest.metrics or not (folder / CONFIG).is_file() or is_cross_encoder(folder):
        return ""
    return manifest.finished
