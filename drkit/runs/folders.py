"""The folder of a stage: unfinished until its manifest is written, then in its place by one rename, or taken over."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drkit.errors import DrkitError
from drkit.runs.manifest import CHECKPOINTS, FINGERPRINT, read_manifest
from drkit.runs.stage import Stage

UNFINISHED = ".unfinished"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors and torch say it in words alone.
_SAID_OF_NO_ROOM = ("No space left", "File too large", "PytorchStreamWriter failed")


def take_over(stage: Stage, run: Path, fingerprint: str, reuse: Sequence[Path]) -> None:
    """Put the first finished stage of another run with this fingerprint in its place, unless one stands already."""
    standing = read_manifest(run / stage.name)
    if standing is not None and standing.fingerprint == fingerprint:
        return
    for other in reuse:
        found = read_manifest(other / stage.name)
        if found is not None and found.fingerprint == fingerprint:
            folder = run / UNFINISHED / stage.name
            shutil.rmtree(folder, ignore_errors=True)
            with full_disk(stage.name, run):
                shutil.copytree(other / stage.name, folder, copy_function=_link)
            publish(folder, run / stage.name)
            return


def _link(source: str, target: str) -> None:
    """A finished stage's files never change, so two runs may share them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def unfinished(stage: Stage, run: Path, fingerprint: str) -> Path:
    """The folder a stage works in; what an interrupted attempt left is kept only where the stage can go on from it."""
    folder = run / UNFINISHED / stage.name
    mark = folder / FINGERPRINT
    ours = stage.resumable and mark.is_file() and mark.read_text() == fingerprint
    with full_disk(stage.name, run):
        if folder.exists() and not ours:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(fingerprint)
    return folder


def publish(folder: Path, final: Path) -> None:
    """Put a finished folder in its place by renames; a stage that stood there goes only when the new one is in.

    What served the attempt alone goes first: its manifest stands, so a kill here loses nothing.
    """
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    (folder / FINGERPRINT).unlink(missing_ok=True)
    old = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    folder.rename(final)
    shutil.rmtree(old, ignore_errors=True)
    handle = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def full_disk(stage: str, run: Path) -> Iterator[None]:
    """Turn whatever a library raises on a full disk into one message (they differ: OSError, SafetensorError ..)."""
    try:
        yield
    except DrkitError:
        raise
    except Exception as error:
        if not _says_full(error, run):
            raise
        raise DrkitError(
            f"the disk is full (or a file may not grow further), in stage {stage}; free some space and run "
            f"`drkit run {run}`: finished stages are kept"
        ) from error


def _says_full(error: Exception, run: Path) -> bool:
    code, text = getattr(error, "errno", None), str(error)
    known = code in _NO_ROOM or any(words in text for words in _SAID_OF_NO_ROOM)
    return known or shutil.disk_usage(run).free < 2**16
