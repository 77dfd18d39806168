"""Atomic writing: a file or folder is either complete or absent."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drkit.errors import DrkitError

# The file that marks a finished stage of a run (drkit.runs.manifest).
_MANIFEST = "manifest.json"
# The folder of what a stage keeps only until it is finished: training checkpoints, shards, blocks.
CHECKPOINTS = "checkpoints"
_LONGEST_JSON = 64 << 20
_TEMPORARY = re.compile(r"\..+\.\d+\.(tmp|old)")


def local_path(text: str | Path) -> Path:
    """Return the path that a user gave, `~` expanded: the one place where such texts become paths.

    Raises DrkitError for a text that no file can have as its path, or the home of an unknown user.
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise DrkitError(f"{str(text)!r:.200}: {error}; give the path in full") from None
    try:
        whole, names = str(path).encode(), [name.encode() for name in path.parts]
    except UnicodeEncodeError:  # half a character, or a name that is not UTF-8
        whole, names = b"\0", []
    if b"\0" in whole or len(whole) >= 4096 or any(len(name) > 255 for name in names):
        raise DrkitError(
            f"{str(path)!r:.200} cannot be a path: give at most 4,095 bytes of UTF-8, at most 255 for each name in it, "
            f"without NUL"
        )
    return path


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
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, advice: str) -> Any:
    """Return the JSON in a file. Raises DrkitError, with the advice, for whatever is not JSON of a modest size."""
    try:
        if path.stat().st_size > _LONGEST_JSON:
            raise ValueError(f"more than {_LONGEST_JSON >> 20} MB")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DrkitError(f"cannot read {path}: {error.strerror}; {advice}") from None
    except (ValueError, RecursionError) as error:
        raise DrkitError(f"{path} is not valid JSON ({error}); {advice}") from None


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
