"""Checksums: whether files have changed since drkit wrote them.

A folder that drkit has written holds a record of its files with their hashes: the manifest of a stage, or the list of
an index or encoder folder (`drkit.core.files`). Commands compare what they open with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drkit.core.files import MANIFEST, FileEntry, file_hash, local_path, read_json, read_written
from drkit.errors import DrkitError

# Files above this size are compared by size alone when a command opens them: 4 GB take several seconds.
LARGEST = 4 * 2**30
# How many folders above a file may hold its record: a stage keeps its rankings in `evaluation/runs`.
_LEVELS = 3
# The files that were compared in this process, by path, size and time of change.
_compared: set[tuple[str, int, int]] = set()


def check_unchanged(path: str | Path, advice: str = "") -> None:
    """Raise DrkitError, with the advice, if a file or folder differs from the record that drkit wrote with it.

    Every recorded file at the path is compared: its size, and, up to 4 GB, its hash; once in a process. A path without
    a record is not checked, nor are texts for people (.md). advice: what to do; of a stage of a run, how to make it
    again.
    """
    place = Path(path).absolute()
    for folder in (place, *place.parents)[: _LEVELS + 1]:
        for name, entry in _entries(folder, place):
            problem = _problem(folder / name, entry)
            if problem:
                again = advice if advice and not (folder / MANIFEST).is_file() else _make_again(folder)
                raise DrkitError(f"{problem}; {again}", where=folder / name)


def _make_again(folder: Path) -> str:
    if not (folder / MANIFEST).is_file():
        return "write the folder again"
    return f"remove the folder {folder} and make it again with `drkit run {folder.parent}`, or restore it from a copy"


def _entries(folder: Path, place: Path) -> Iterator[tuple[str, FileEntry]]:
    """Yield the recorded files of a folder that are at a path, which is the folder or lies below it."""
    inner = place.relative_to(folder).as_posix()
    for name, entry in {**read_written(folder), **_read_manifest_files(folder)}.items():
        if is_inside(name) and not name.endswith(".md") and (inner in (".", name) or name.startswith(f"{inner}/")):
            yield name, entry


def is_inside(name: str) -> bool:
    """Return whether a name in the record of a folder leads to a file in that folder.

    Raises DrkitError for a name that no file can have.
    """
    found = local_path(name)
    return bool(found.name) and not found.is_absolute() and ".." not in found.parts


def _read_manifest_files(folder: Path) -> dict[str, FileEntry]:
    """Return the files in the manifest of a stage, without those that were pruned; empty without a valid manifest."""
    if not (folder / MANIFEST).is_file():
        return {}
    try:
        table = read_json(folder / MANIFEST, "")
        pruned = {name for name in table.get("pruned", ()) if not (folder / name).is_file()}
        return {name: FileEntry(**entry) for name, entry in table["files"].items() if name not in pruned}
    except (DrkitError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def _problem(path: Path, entry: FileEntry) -> str:
    """Return how a file differs from its record; empty if it does not."""
    if not path.is_file():
        return "is missing"
    status = path.stat()
    if status.st_size != entry.bytes:
        return f"has {status.st_size:,} bytes, expected {entry.bytes:,}"
    key = (str(path), status.st_size, status.st_mtime_ns)
    if key in _compared or not entry.blake2b or entry.bytes > LARGEST:
        return ""
    if file_hash(path) != entry.blake2b:
        return "has changed since drkit wrote it (its checksum differs)"
    _compared.add(key)
    return ""
