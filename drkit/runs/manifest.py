"""A stage's manifest: its settings, inputs and output files, with the hashes that show whether they are intact."""

from __future__ import annotations

import json
import os
import platform
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import cattrs
import psutil
from attrs import field, frozen

from drkit.core.checksums import is_inside
from drkit.core.files import (
    CHECKPOINTS,
    IDENTITY,
    MANIFEST,
    TRAINING,
    WRITTEN,
    FileEntry,
    digest,
    find_damages,
    json_text,
    read_json,
    write_json,
)
from drkit.core.registry import installed
from drkit.errors import DrkitError

# Raised when the meaning of a run's folders changes; runs of another layout are rejected.
LAYOUT = 2
# The hash of the rest of a manifest; those of older runs have none. What depends on time and machine is left out: the
# same stage has the same checksum everywhere.
_CHECKSUM = "checksum"
_VARYING = {"seconds", "amount", "unit", "finished", "memory", "machine", "versions", "pairs_per_second", TRAINING}
# The number of processes that a run began with, in its folder: its batches stay as large as theirs.
PROCESSES = ".processes.json"
# What has changed in the code since an attempt was started that goes on all the same.
STALE = ".stale.json"
# Packages whose versions are recorded: those that compute, and those that read, cut and write texts.
PACKAGES = (
    *("drkit", "torch", "transformers", "tokenizers", "accelerate", "safetensors", "numpy", "scipy", "pyarrow"),
    *("sentence-transformers", "peft", "faiss-cpu", "faiss-gpu", "bm25s", "PyStemmer", "nltk", "regex", "datasets"),
    *("ir-datasets", "ir-measures", "pytrec_eval-terrier"),
)

# What decides the terms of BM25 (stems, stop words, letters), the ends of sentences, and how a pair is put into the
# template of a model and truncated, by the extra of drkit.
_TEXT_LIBRARIES = {
    "bm25": ("bm25s", "PyStemmer", "unicode"),
    "nltk": ("nltk", "regex"),
    "sentence-transformers": ("sentence-transformers",),
}


def recorded_processes(run: Path) -> int | None:
    """Return the number of processes that a run began with, or None before that. Raises DrkitError if it is damaged."""
    path = run / PROCESSES
    if not path.is_file():
        return None
    found = read_json(path, "write the number of processes there that the run began with")
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise DrkitError("expected the number of processes that the run began with", where=path)
    return found


@frozen
class Manifest:
    """The record of a finished stage, kept beside its files.

    stage, stage_version: the identity of its `StageSpec`. fingerprint: covers settings, inputs and sources. settings:
    plain values by the recipe's dotted paths. inputs: content hashes by name. sources: states of files outside the run,
    by the setting that names them. origins: where each input came from (`collection/train`). records: files that
    document the stage (logs, probes) and are not results. code, packages: hashes of the plugins' files, and versions,
    that the stage was made with (`drkit.core.plugin_code`). stale: what has changed since in a stage that its owner
    keeps as it is. pruned: files that were removed to free space. machine: the
    processor, its cores, the memory and the GPU that made the stage. memory: peak memory in bytes, `host` and
    `gpu`; unknown ones are omitted. amount, unit: of the work that took the seconds
    (`drkit.runs.work`); 0 if it is not counted, or a part of it was done before an interruption.
    """

    layout: int
    stage: str
    stage_version: int
    fingerprint: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    sources: Mapping[str, str]
    origins: Mapping[str, str]
    files: Mapping[str, FileEntry]
    metrics: Mapping[str, Any]
    seconds: float
    finished: str
    versions: Mapping[str, str]
    records: tuple[str, ...] = ()
    code: Mapping[str, str] = field(factory=dict)
    packages: Mapping[str, str] = field(factory=dict)
    stale: tuple[str, ...] = ()
    pruned: tuple[str, ...] = ()
    machine: Mapping[str, str] = field(factory=dict)
    memory: Mapping[str, int] = field(factory=dict)
    amount: float = 0.0
    unit: str = ""

    def identity(self) -> dict[str, Any]:
        """Return what the fingerprint was computed from, as `Stage.identity` does."""
        made_by = {"code": dict(self.code), "packages": dict(self.packages)}
        return {
            "stage": self.stage,
            "version": self.stage_version,
            "settings": self.settings,
            "inputs": self.inputs,
            "sources": self.sources,
            **{name: found for name, found in made_by.items() if found},
        }

    def content(self, path: str = "") -> str:
        """Return one hash over the stage's files, or over those at `path` (a file or folder).

        Records are left out, unless `path` names one. Raises DrkitError if the stage has no file at `path`.
        """
        hashes = {name: one.blake2b for name, one in self.files_at(path).items() if path or name not in self.records}
        if path and not hashes:
            raise DrkitError(f"the stage {self.stage!r} has no {path}; its files: {', '.join(self.files) or 'none'}")
        return digest(hashes)

    def files_at(self, path: str = "") -> dict[str, FileEntry]:
        """Return the stage's files, or those at `path` (a file or folder)."""
        return {n: one for n, one in self.files.items() if not path or n == path or n.startswith(f"{path}/")}

    @property
    def bytes(self) -> int:
        """The size of the stage's files, without those that were pruned."""
        return sum(entry.bytes for name, entry in self.files.items() if name not in self.pruned)

    def has_pruned(self, path: str = "") -> bool:
        """Return whether a file of the stage, or of those at `path`, was removed to free space."""
        return any(not path or name == path or name.startswith(f"{path}/") for name in self.pruned)


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Return size and content hash of every file under `folder`, without the manifest and temporary files."""
    excluded = {MANIFEST, IDENTITY, STALE, CHECKPOINTS}
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != WRITTEN)
    paths = [path for path in found if path.relative_to(folder).parts[0] not in excluded]
    return {p.relative_to(folder).as_posix(): FileEntry.of(p) for p in paths}


def read_stale(folder: Path) -> tuple[str, ...]:
    """Return what has changed in the code since an unfinished attempt was started; see `drkit.runs.stale`."""
    return tuple(read_json(folder / STALE, "remove that folder")) if (folder / STALE).is_file() else ()


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the manifest; must be the last step, because a folder without a manifest is not finished.

    It ends with a checksum of itself.
    """
    table = json.loads(json_text(attrs.asdict(manifest)))
    write_json(folder / MANIFEST, {**table, _CHECKSUM: digest(_lasting(table))})


def load_manifest(folder: Path) -> Manifest | None:
    """Read the manifest in `folder` without checking the files; None if it is missing or damaged.

    Raises DrkitError if another version of drkit wrote it in another layout, or the folder or the manifest is a link: a
    stage is a folder of its own inside its run.
    """
    for path in (folder, folder / MANIFEST):
        refuse_link(path)
    try:
        table = read_json(folder / MANIFEST, "")
    except DrkitError:
        return None
    if isinstance(table, dict) and not _is_as_written(table):
        return None
    if isinstance(table, dict) and table.get("layout") != LAYOUT and "fingerprint" in table:
        raise DrkitError(
            f"{folder.parent} was made by another version of drkit, in another layout; choose another --run-dir. "
            f"Its encoder folder can still be used: --encoder {folder.parent / 'encoder'}"
        )
    try:
        manifest = cattrs.structure(table, Manifest)
        names = (*manifest.files, *manifest.pruned, *manifest.records)
        return manifest if all(map(is_inside, names)) else None
    except (cattrs.BaseValidationError, DrkitError, TypeError, ValueError):
        return None


def _is_as_written(table: dict[str, Any]) -> bool:
    """Return whether a manifest's table has its checksum, which is removed, or had none."""
    written = table.pop(_CHECKSUM, None)
    try:
        return written is None or written == digest(_lasting(table))
    except (RecursionError, UnicodeEncodeError):
        return False


def _lasting(value: Any) -> Any:
    """Return plain data without what depends on time and machine."""
    if isinstance(value, dict):
        return {name: _lasting(inner) for name, inner in value.items() if name not in _VARYING}
    return [_lasting(inner) for inner in value] if isinstance(value, list) else value


def refuse_link(path: Path) -> None:
    """Raise DrkitError if a path of a run is a symbolic link: what drkit removes or replaces lies inside the run."""
    if path.is_symlink():
        raise DrkitError(f"{path} is a symbolic link; a run contains its own files: put what it points to in its place")


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of an intact (or pruned) stage; None if it or a file is missing, or a file's size differs."""
    manifest = load_manifest(folder)
    return manifest if manifest is not None and not any(damages(manifest, folder)) else None


def damages(manifest: Manifest, folder: Path, *, verify: bool = False) -> Iterable[str]:
    """Return a line for each damaged file of a stage, except pruned ones; see `drkit.core.files.find_damages`."""
    present = {n: e for n, e in manifest.files.items() if n not in manifest.pruned or (folder / n).is_file()}
    return find_damages(present, folder, verify=verify)


def versions() -> dict[str, str]:
    """Return the versions of Python, and of packages and plugins that affect a run's results.

    All are recorded; a stage's fingerprint covers those that `Stage.packages` names.
    """
    providers = (report.provider.partition(" ") for report in installed().plugins)
    return {**{name: known for name, _, known in providers if known}, **_package_versions()}


@cache
def _package_versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    found["unicode"] = unicodedata.unidata_version  # Python's own tables of characters
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def text_libraries(extras: Iterable[str]) -> dict[str, str]:
    """Return the versions of what reads texts for code that needs these extras: see `_TEXT_LIBRARIES`."""
    here, names = versions(), {name for extra in extras for name in _TEXT_LIBRARIES.get(extra, ())}
    return {name: here.get(name, "") for name in sorted(names)}


def machine() -> dict[str, str]:
    """Return the processor, its cores, the memory, and the GPU if torch sees one: recorded, never hashed."""
    memory = psutil.virtual_memory().total
    found = {"processor": _processor(), "cores": str(os.cpu_count()), "memory": f"{memory / 2**30:.0f} GiB"}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["gpu"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return found


@cache
def _processor() -> str:
    """Return the processor's name as Linux knows it, or else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
