"""Atomic writing: a file or folder is either complete or absent."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from drkit.errors import DrkitError

# The file that marks a finished stage of a run (drkit.runs.manifest).
_MANIFEST = "manifest.json"
# The folder of what a stage keeps only until it is finished: training checkpoints, shards, blocks.
CHECKPOINTS = "checkpoints"
_TEMPORARY = re.compile(r"\..+\.\d+\.(tmp|old)")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` on success and is removed on failure.

    Raises DrkitError if `path` is a folder, or its parent folder is not writable.
    """
    if path.is_dir():
        raise DrkitError(f"{path} is a folder; give the path of a file")
    make_folder(path.parent)
    temporary = _beside(path, "tmp")
    _try(temporary.touch, path.parent)
    temporary.unlink()
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_replaceable(path: Path, mark: str) -> None:
    """Raise DrkitError if a new folder must not replace what is at `path`.

    It may replace an empty folder, or an older folder of the same kind: one that contains the file `mark` and is not a
    stage of a run.
    """
    if path.exists() and not path.is_dir():
        raise DrkitError(f"{path} is a file; give the path of a folder")
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")} if path.exists() else set()
    if _MANIFEST in names:
        raise DrkitError(f"{path} belongs to a run and must not be replaced; choose another folder")
    if names and mark not in names:
        raise DrkitError(f"{path} is not empty and contains other files (no {mark}); choose another folder")


@contextmanager
def replacing_folder(path: Path, mark: str) -> Iterator[Path]:
    """Yield a temporary folder to fill, which replaces `path` on success and is removed on failure.

    mark: a file that every folder of this kind contains. Raises DrkitError as `check_replaceable` does, and if the
    parent folder is not writable.
    """
    check_replaceable(path, mark)
    make_folder(path.parent)
    temporary = _beside(path, "tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    _try(temporary.mkdir, path.parent)
    try:
        yield temporary
        old = _beside(path, "old")
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left half written below a folder, by the names that this module gives.

    No other process may be writing there.
    """
    for path in [path for path in folder.rglob(".*") if _TEMPORARY.fullmatch(path.name)]:
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)


@frozen
class FileEntry:
    """A file as it was written: its size in bytes, and the hash of its content."""

    bytes: int
    blake2b: str

    @classmethod
    def of(cls, path: Path) -> FileEntry:
        """Describe a file."""
        return cls(path.stat().st_size, file_hash(path))


def file_hash(path: Path) -> str:
    """Return the hash of a file's content."""
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def find_damages(files: Mapping[str, FileEntry], folder: Path, *, verify: bool) -> Iterator[str]:
    """Yield a line for each file that is missing or has another size; with `verify`, also for changed content."""
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif (size := path.stat().st_size) != entry.bytes:
            yield f"{name} has {size:,} bytes, expected {entry.bytes:,}"
        elif verify and file_hash(path) != entry.blake2b:
            yield f"{name} was changed"


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(path: Path, kind: str) -> Path:
    """Return this process's temporary path next to `path`: `tmp` for a new one, `old` for the one it replaces."""
    return path.with_name(f".{path.name}.{os.getpid()}.{kind}")


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Hard-link a file if possible, else copy it: finished files never change, so two stages may share them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. Raises DrkitError if it cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DrkitError(f"cannot create the folder {folder}: {error.strerror}; choose another location") from None


def _try(write: Callable[[], None], folder: Path) -> None:
    try:
        write()
    except OSError as error:
        raise DrkitError(f"cannot write to the folder {folder}: {error.strerror}; choose another location") from None
