"""What a training resumes from: checkpoints that are synced to disk, verified before use, and rotated by step.

`checkpoint-STEP` contains the Trainer's files and those that callbacks keep in `callbacks` beside the checkpoints (best
weights, measurements, mined negatives): all of a training's state is verified together, and restored together. Nothing
is shared by hard links, so that a damaged file costs one checkpoint. The mark `.complete` is written last and lists the
hashes of all files.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import cattrs
from attrs import asdict

from drkit.core.files import FileEntry, find_damages, remove_folder, remove_temporaries, sync, write_text
from drkit.core.progress import Progress

COMPLETE = ".complete"
# The folder, beside the checkpoints, of files that callbacks need to resume.
CALLBACKS = "callbacks"
# Two, so that there is an older checkpoint if the newest is damaged.
KEPT_CHECKPOINTS = 2


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, complete or not, by step."""
    found = [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdecimal()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step of a checkpoint, which its name ends with."""
    return int(checkpoint.name.rpartition("-")[2])


def complete_checkpoint(checkpoint: Path, *, kept: int = KEPT_CHECKPOINTS) -> None:
    """Add the callbacks' files to a checkpoint, sync it to disk, mark it as complete, and remove the oldest ones.

    kept: the number of checkpoints that remain. transformers would remove old ones before this one is complete, and by
    modification time, which a clock that steps back changes.
    """
    folder = checkpoint.parent
    remove_temporaries(checkpoint)
    _replace_folder(folder / CALLBACKS, checkpoint / CALLBACKS)
    paths = sorted(checkpoint.rglob("*"))
    for path in [*paths, checkpoint, folder]:
        sync(path)
    files = {path.relative_to(checkpoint).as_posix(): asdict(FileEntry.of(path)) for path in paths if path.is_file()}
    files.pop(COMPLETE, None)
    write_text(checkpoint / COMPLETE, json.dumps(files, indent=1))
    for old in checkpoints(folder)[:-kept]:
        shutil.rmtree(old, ignore_errors=True)


def is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint is marked, and all its files have the size they had then."""
    return (checkpoint / COMPLETE).exists() and not any(checkpoint_damages(checkpoint, verify=False))


def checkpoint_damages(checkpoint: Path, *, verify: bool = True) -> Iterator[str]:
    """Yield a line for each damaged file of a marked checkpoint. verify: compare content too, not only sizes."""
    try:
        table = json.loads((checkpoint / COMPLETE).read_text(encoding="utf-8"))
        yield from find_damages(cattrs.structure(table, dict[str, FileEntry]), checkpoint, verify=verify)
    except (ValueError, cattrs.BaseValidationError, AttributeError, TypeError):
        yield f"{COMPLETE} is not a list of files"
    except OSError as error:
        if error.errno != errno.EIO:  # it may be only this process that cannot read the checkpoint
            raise
        yield f"{error.filename or 'a file'} cannot be read: {error.strerror}"


def newest_checkpoint(folder: Path, progress: Progress) -> Path | None:
    """Return the newest whole checkpoint in `folder`, and restore the callbacks' files from it.

    Incomplete and damaged checkpoints are removed, and the files of callbacks too if no checkpoint is whole; `progress`
    gets a note for each damaged one.
    """
    found = None
    for checkpoint in reversed(checkpoints(folder)):
        if (checkpoint / COMPLETE).exists():
            damages = list(checkpoint_damages(checkpoint))
            if not damages:
                found = checkpoint
                break
            progress.note(f"{checkpoint.name} is damaged and will not be used: {damages[0]}")
        shutil.rmtree(checkpoint, ignore_errors=True)
    _replace_folder(found / CALLBACKS if found else None, folder / CALLBACKS)
    return found


def _replace_folder(source: Path | None, target: Path) -> None:
    """Make `target` a copy of `source`; remove it if `source` is missing."""
    remove_folder(target)
    if source and source.is_dir():
        shutil.copytree(source, target)
