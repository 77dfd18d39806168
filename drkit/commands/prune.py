"""Prune a finished run: remove the weights and indexes that only its own stages read, and that they have read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from drkit.core.files import remove_temporaries
from drkit.core.registry import Registry
from drkit.errors import DrkitError
from drkit.recipe.start import RECIPE
from drkit.recipe.toml import read_recipe
from drkit.runs.execute import locked
from drkit.runs.manifest import Manifest, write_manifest
from drkit.runs.plan import plan
from drkit.runs.stage import Stage
from drkit.runs.survey import last_checkpoint, survey


@frozen
class Pruned:
    """What was removed from a stage: the number of files, and the bytes that this frees (shared files free none)."""

    stage: str
    files: int
    bytes: int


def prune_run(run: Path, registry: Registry, *, dry_run: bool = False) -> list[Pruned]:
    """Remove the weights of all rounds but the exported one, of the start, and the indexes of all retrievers.

    The folders `encoder`, `index`, `pretrained`, `pretrained@STEP` and `reranker` stay whole. Each manifest keeps the
    hashes of the removed files and lists them as `pruned`, so finished stages stay finished. If the run goes on
    later and a stage needs such a file, the stage that made it runs again. dry_run: remove nothing. Returns what was
    removed, by stage.

    Raises DrkitError if `run` is not a run, is not finished, or, unless `dry_run`, another process works in it.
    """
    if not (run / RECIPE).is_file():
        raise DrkitError(f"{run} is not a run (no {RECIPE}); give the folder of a finished one")
    # To look takes no lock: a run that may only be read has none to take.
    with nullcontext() if dry_run else locked(run, "copy the run to where you may write"):
        findings = list(survey(plan(read_recipe(run / RECIPE, registry), registry).stages, run))
        unfinished = [f"{found.stage.name}: {found.summary}" for found in findings if not found.is_finished]
        if unfinished:
            raise DrkitError(
                f"{run} is not finished ({unfinished[0]}), and its remaining stages may need the weights; finish it "
                f"first with `drkit run {run}`"
            )
        if not dry_run:
            for found in findings:  # a killed `prune` may have left one
                remove_temporaries(run / found.stage.name)
        made = [(found.stage, found.manifest) for found in findings if found.manifest]
        return [_prune(*one, dry_run=dry_run) for one in _prunable(run, made)]


def disk_use(run: Path, stages: Iterable[Stage[Any]], done: Mapping[str, Manifest]) -> tuple[int, int]:
    """Return the bytes of a finished run, whose manifests are `done`, and how many of them `prune_run` frees."""
    files = (path.lstat() for path in run.rglob("*") if not path.is_dir())
    made = [(stage, done[stage.name]) for stage in stages]
    freed = sum(_prune(*one, dry_run=True).bytes for one in _prunable(run, made))
    return sum({(status.st_dev, status.st_ino): status.st_size for status in files}.values()), freed


def _prunable(run: Path, made: Iterable[tuple[Stage[Any], Manifest]]) -> Iterator[tuple[Manifest, Path, Sequence[str]]]:
    """Yield what to remove: a manifest, its folder, and its files, with those that a killed `prune` marked and left."""
    kept = ("encoder", last_checkpoint(run).name)
    for stage, manifest in made:
        folder, pattern = run / stage.name, stage.spec.prunable
        files = [name for name in manifest.files if fnmatch(name, pattern) and (folder / name).exists()]
        if files and stage.name not in kept:
            yield manifest, folder, files


def _prune(manifest: Manifest, folder: Path, files: Sequence[str], *, dry_run: bool) -> Pruned:
    """Mark files as pruned, then remove them: a kill in between leaves files, which the next call removes."""
    sizes = [(status.st_size, status.st_nlink) for status in ((folder / name).stat() for name in files)]
    if not dry_run:
        write_manifest(evolve(manifest, pruned=tuple(dict.fromkeys((*manifest.pruned, *files)))), folder)
        for name in files:
            (folder / name).unlink()
    return Pruned(folder.name, len(files), sum(size for size, links in sizes if links == 1))
