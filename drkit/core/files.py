"""Files that are either there and whole, or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drkit.errors import DrkitError

# What a run leaves in a stage that stands (drkit.runs.manifest).
_OF_A_RUN = "manifest.json"
# What a stage keeps only until it is done: checkpoints of a training, shards, blocks.
CHECKPOINTS = "checkpoints"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; on success it takes `path`'s place, on failure it is removed.

    Raises DrkitError where `path` is a folder, or nothing can be written beside it.
    """
    if path.is_dir():
        raise DrkitError(f"{path} is a folder; give the name of a file")
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _try(temporary.touch, path.parent)
    temporary.unlink()
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_replaceable(path: Path, mark: str) -> None:
    """Raise DrkitError where something stands at `path` that no new folder may take the place of.

    It may where there is nothing, an empty folder, or an older one of the same kind: one that holds the file `mark`,
    and is no stage of a run.
    """
    if path.exists() and not path.is_dir():
        raise DrkitError(f"{path} is a file; give the name of a folder")
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")} if path.exists() else set()
    if _OF_A_RUN in names:
        raise DrkitError(f"{path} belongs to a run, which would miss it; choose another folder")
    if names and mark not in names:
        raise DrkitError(f"{path} is not empty, and holds something else (no {mark}); choose another folder")


@contextmanager
def replacing_folder(path: Path, mark: str) -> Iterator[Path]:
    """A temporary folder beside `path` to fill; on success it takes `path`'s place, on failure it is removed.

    mark: a file that every folder of its kind holds. Raises DrkitError as `check_replaceable` does, and where
    nothing can be written beside `path`.
    """
    check_replaceable(path, mark)
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    _try(temporary.mkdir, path.parent)
    try:
        yield temporary
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it. Raises DrkitError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DrkitError(f"cannot make the folder {folder}: {error.strerror}; write to another place") from None


def _try(write: Callable[[], None], folder: Path) -> None:
    try:
        write()
    except OSError as error:
        raise DrkitError(f"cannot write to the folder {folder}: {error.strerror}; write to another place") from None
