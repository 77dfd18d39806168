"""Keep stages that were made by other code, for an owner who knows that the change does not matter (`--keep-stale`).

The record of the stage says what has changed since, and gets the fingerprint of today's code, so later commands keep
it, too. Its settings and inputs are not touched: if they changed, the stage is made again all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attrs import evolve

from drkit.core.files import IDENTITY, digest, read_json, write_json
from drkit.core.plugin_code import PluginCode
from drkit.errors import UnknownNameError
from drkit.runs.manifest import STALE, load_manifest, read_stale, write_manifest
from drkit.runs.stage import Stage
from drkit.runs.survey import UNFINISHED, code_changes


def kept_stale(stages: Sequence[Stage[Any]], run: Path, patterns: Sequence[str]) -> tuple[Stage[Any], ...]:
    """Return the stages of a plan with the code that those matching `patterns` were made by, so that they are kept.

    Nothing is written. patterns: names of stages, as in `retriever-*`. Raises UnknownNameError for one without a match.
    """
    chosen = _matching(stages, patterns)
    made_by = {stage.name: old for stage in chosen if (old := _code_of(stage, run)) is not None}
    return tuple(evolve(stage, code=made_by.get(stage.name, stage.code)) for stage in stages)


def keep_stale(stages: Sequence[Stage[Any]], run: Path, patterns: Sequence[str]) -> None:
    """Record that the stages matching `patterns`, finished or interrupted, are kept although their code has changed.

    Raises UnknownNameError for a pattern without a match.
    """
    for stage in _matching(stages, patterns):
        manifest = load_manifest(run / stage.name)
        if manifest is not None and (changed := code_changes(stage, manifest.code, manifest.packages)):
            stale = tuple(dict.fromkeys((*manifest.stale, *changed)))
            kept = evolve(manifest, code=stage.code.files, packages=stage.packages, stale=stale)
            write_manifest(evolve(kept, fingerprint=digest(kept.identity())), run / stage.name)
        _keep_attempt(stage, run / UNFINISHED / stage.name)


def _keep_attempt(stage: Stage[Any], folder: Path) -> None:
    """Let an interrupted stage go on from its checkpoints with today's code."""
    if not (folder / IDENTITY).is_file():
        return
    identity = read_json(folder / IDENTITY, "remove that folder")
    if changed := code_changes(stage, identity.get("code", {}), identity.get("packages", {})):
        write_json(folder / STALE, [*read_stale(folder), *changed])
        made_by = {"code": dict(stage.code.files), "packages": stage.packages}
        rest = {name: value for name, value in identity.items() if name not in made_by}
        write_json(folder / IDENTITY, {**rest, **{name: found for name, found in made_by.items() if found}})


def _matching(stages: Sequence[Stage[Any]], patterns: Sequence[str]) -> Iterator[Stage[Any]]:
    names = [stage.name for stage in stages]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UnknownNameError("stage", pattern, names, where="--keep-stale")
    return (stage for stage in stages if any(fnmatchcase(stage.name, pattern) for pattern in patterns))


def _code_of(stage: Stage[Any], run: Path) -> PluginCode | None:
    manifest = load_manifest(run / stage.name)
    if manifest is not None:
        return PluginCode(manifest.code, manifest.packages)
    identity = read_json(path, "") if (path := run / UNFINISHED / stage.name / IDENTITY).is_file() else None
    return PluginCode(identity.get("code", {}), identity.get("packages", {})) if identity else None
