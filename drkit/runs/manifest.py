"""A stage's manifest: what it was made from, what it made, and the hashes that tell whether it is intact."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import cattrs
from attrs import frozen

from drkit.core.files import CHECKPOINTS, write_text
from drkit.errors import DrkitError
from drkit.recipe.write import json_text

FILE = "manifest.json"
# Raised when a run's folders mean something else than before; runs of another layout are refused.
LAYOUT = 2
# The mark of an unfinished attempt: what it was begun for.
IDENTITY = ".identity.json"
PACKAGES = ("drkit", "torch", "transformers", "tokenizers", "accelerate", "faiss-cpu", "bm25s", "numpy")


@frozen
class Written:
    """One file of a stage: bytes, and the hash of its content."""

    bytes: int
    blake2b: str


@frozen
class Manifest:
    """What is kept in a finished stage's folder beside its files.

    stage, stage_version: the identity of its `StageSpec`. fingerprint: covers settings, inputs and sources. settings:
    plain values by the recipe's dotted paths. inputs: content hashes by name. sources: states of files outside the run,
    by the setting that names them. origins: where each input came from (`collection/train`). records: files that tell
    how it went and are no result.
    """

    layout: int
    stage: str
    stage_version: int
    fingerprint: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    sources: Mapping[str, str]
    origins: Mapping[str, str]
    files: Mapping[str, Written]
    metrics: Mapping[str, Any]
    seconds: float
    finished: str
    versions: Mapping[str, str]
    records: tuple[str, ...] = ()

    def content(self, path: str = "") -> str:
        """Return one hash over the stage's files, or over those at `path` (a file, or a folder of them).

        Records are left out, unless `path` names one. Raises DrkitError where there is no such file.
        """
        chosen = {
            name: written.blake2b
            for name, written in self.files.items()
            if (name == path or name.startswith(f"{path}/") if path else name not in self.records)
        }
        if path and not chosen:
            raise DrkitError(f"the stage {self.stage!r} has no {path}; its files: {', '.join(self.files) or 'none'}")
        return digest(chosen)


def digest(value: Any) -> str:
    """A short, stable hash of plain data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def describe_files(folder: Path) -> dict[str, Written]:
    """Return every file under `folder` that is to stay (the manifest left out), with its size and content hash."""
    passing = {FILE, IDENTITY, CHECKPOINTS}
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0] not in passing)
    return {p.relative_to(folder).as_posix(): Written(p.stat().st_size, file_hash(p)) for p in paths}


def file_hash(path: Path) -> str:
    """Return the hash of a file's content."""
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write it last: a folder without a manifest is not finished."""
    write_text(folder / FILE, json_text(attrs.asdict(manifest)))


def load_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in `folder`, whatever became of the files; None where it is missing or damaged.

    Raises DrkitError where another version of drkit wrote it in another layout.
    """
    try:
        table = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if isinstance(table, dict) and table.get("layout") != LAYOUT and "fingerprint" in table:
        raise DrkitError(
            f"{folder.parent} was made by another version of drkit, in another layout; choose another --run-dir "
            f"(its encoder folder can still be used: --encoder {folder.parent / 'encoder'})"
        )
    try:
        return cattrs.structure(table, Manifest)
    except (cattrs.BaseValidationError, TypeError, ValueError):
        return None


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of an intact stage; None where it is missing, or a file is missing or of another size."""
    manifest = load_manifest(folder)
    return manifest if manifest is not None and not any(damages(manifest, folder)) else None


def damages(manifest: Manifest, folder: Path, *, verify: bool = False) -> Iterable[str]:
    """Yield a line for each file that is missing or of another size; with `verify`, also for changed content."""
    for name, written in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif (size := path.stat().st_size) != written.bytes:
            yield f"{name} has {size:,} bytes, expected {written.bytes:,}"
        elif verify and file_hash(path) != written.blake2b:
            yield f"{name} was changed"


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a run's numbers: recorded, never hashed."""
    found = {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
