"""A stage's manifest: what it was made from, what it made, and the hashes that tell whether it still stands."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs
import cattrs
from attrs import frozen

from drkit.core.files import write_text
from drkit.core.write import json_text

FILE = "manifest.json"
# What a stage keeps only until it is done: the mark of its attempt, and a training's checkpoints.
FINGERPRINT = ".fingerprint"
CHECKPOINTS = "checkpoints"
PACKAGES = ("drkit", "torch", "transformers", "tokenizers", "accelerate", "faiss-cpu", "bm25s", "numpy")


@frozen
class Written:
    """One file of a stage: bytes, and the hash of its content."""

    bytes: int
    blake2b: str


@frozen
class Manifest:
    """What stands in a finished stage's folder.

    `fingerprint` covers everything the stage was made from: its settings, and the `content` of its inputs.
    """

    stage: str
    fingerprint: str
    content: str
    inputs: Mapping[str, str]
    settings: Mapping[str, Any]
    files: Mapping[str, Written]
    metrics: Mapping[str, Any]
    seconds: float
    finished: str
    versions: Mapping[str, str]


def digest(value: Any) -> str:
    """A short, stable hash of plain data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def describe_files(folder: Path) -> dict[str, Written]:
    """Every file under `folder` that is to stay (the manifest left out), with its size and content hash."""
    passing = {FILE, FINGERPRINT, CHECKPOINTS}
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).parts[0] not in passing)
    return {p.relative_to(folder).as_posix(): Written(p.stat().st_size, _hash(p)) for p in paths}


def _hash(path: Path) -> str:
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def content_hash(files: Mapping[str, Written]) -> str:
    """One hash over all files of a stage: what the stages that read it depend on."""
    return digest({name: written.blake2b for name, written in files.items()})


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write it last: a folder without a manifest is not finished."""
    write_text(folder / FILE, json_text(attrs.asdict(manifest)))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest in `folder`; None where there is none, it is broken, or a file is missing or of another size."""
    try:
        manifest = cattrs.structure(json.loads((folder / FILE).read_text(encoding="utf-8")), Manifest)
    except (OSError, ValueError, cattrs.BaseValidationError):
        return None
    whole = all(_size(folder / name) == written.bytes for name, written in manifest.files.items())
    return manifest if whole else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


@cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a run's numbers."""
    found = {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
