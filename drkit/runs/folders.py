"""The folder of a stage: unfinished until its manifest is written, then put in place by one rename, or taken over."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drkit.core.files import write_text
from drkit.core.write import json_text
from drkit.errors import DrkitError
from drkit.runs.manifest import CHECKPOINTS, IDENTITY, digest, read_manifest
from drkit.runs.stage import Stage
from drkit.runs.survey import UNFINISHED, attempted

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors and torch report a full disk in words alone.
_WORDS_OF_NO_ROOM = ("No space left", "File too large", "PytorchStreamWriter failed")


def take_over(stage: Stage[Any], run: Path, fingerprint: str, reuse: Sequence[Path]) -> None:
    """Put the first finished stage of another run with this fingerprint in place, unless the run has it already."""
    own = read_manifest(run / stage.name)
    if own is not None and own.fingerprint == fingerprint:
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


def unfinished(stage: Stage[Any], run: Path, identity: Mapping[str, Any]) -> Path:
    """Return the folder a stage works in; an interrupted attempt is kept only where the stage can resume from it."""
    folder = run / UNFINISHED / stage.name
    ours = stage.spec.resumable and attempted(folder) == digest(identity)
    with full_disk(stage.name, run):
        if folder.exists() and not ours:
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / IDENTITY, json_text(identity))
    return folder


def publish(folder: Path, final: Path) -> None:
    """Put a finished folder in place by renames; the stage that it replaces goes only when the new one is in.

    What served the attempt alone goes first: its manifest is written, so a kill here loses nothing.
    """
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    (folder / IDENTITY).unlink(missing_ok=True)
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
        if not _is_full(error, run):
            raise
        raise DrkitError(
            f"the disk is full (or a file may not grow further), in stage {stage}; free some space and run "
            f"`drkit run {run}`: finished stages are kept"
        ) from error


def _is_full(error: Exception, run: Path) -> bool:
    code, text = getattr(error, "errno", None), str(error)
    known = code in _NO_ROOM or any(words in text for words in _WORDS_OF_NO_ROOM)
    return known or shutil.disk_usage(run).free < 2**16
