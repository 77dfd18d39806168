"""Atomic writing: a file or folder is either complete or absent."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from attrs import asdict, field, frozen
from attrs.validators import instance_of

from drkit.errors import DrkitError

_LOGGER = logging.getLogger(__name__)
# How the names of temporary folders of commands start.
SCRATCH = "drkit-scratch-"
# The file that marks a finished stage of a run (drkit.runs.manifest).
MANIFEST = "manifest.json"
# The file that marks an unfinished stage, with its identity; it is renamed as a whole when it is finished.
IDENTITY = ".identity.json"
# The list of the files of a folder that drkit wrote, in that folder.
WRITTEN = ".drkit-files.json"
# Before a folder is replaced, larger files are compared by size alone: nobody edits them by hand.
_LARGEST_HASHED = 2**20
# The folder of what a stage keeps only until it is finished: training checkpoints, shards, blocks.
CHECKPOINTS = "checkpoints"
# What a training records: its log, and its steps, loss and seconds.
LOG, TRAINING = "log.jsonl", "training.json"
# .. and the measurements during pre-training, and during fine-tuning.
PROBES, VALIDATION = "probes.jsonl", "validation.jsonl"
_LONGEST_JSON = 64 << 20
# What this module writes first, and safetensors (the names are those of Rust's tempfile).
_TEMPORARY = re.compile(r"\..+\.\d+\.(tmp|old)|\.tmp[A-Za-z0-9]{6}")


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


def input_path(text: str | Path) -> Path:
    """Return the path of a file to read; `-` is standard input. Raises DrkitError as `local_path` does."""
    return Path("/dev/stdin") if str(text) == "-" else local_path(text)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` on success and is removed on failure.

    What a link points to is replaced, not the link. A device, a pipe, or the file that standard output goes to is not
    replaced: the content is written to it on success.

    Raises DrkitError if `path` is a folder, or its parent folder is not writable.
    """
    if path.is_dir():
        raise DrkitError(f"{path} is a folder; give the path of a file")
    if path.exists() and (not path.is_file() or _is_standard_output(path)):
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder, path.name)
            with Path(folder, path.name).open("rb") as content, _open_stream(path) as stream:
                shutil.copyfileobj(content, stream)
        return
    path = path.resolve() if path.is_symlink() else path
    make_folder(path.parent)
    temporary = _beside(path, "tmp")
    _explain_failure(temporary.touch, path.parent)
    allowed = temporary.stat().st_mode
    temporary.unlink()
    try:
        yield temporary
        _allow(temporary, allowed)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
        _log_written(path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_standard_output(path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:  # standard output is closed
        return False


def _open_stream(path: Path) -> BinaryIO:
    """Open a device or pipe to write to; standard output continues where it is, even if it goes to a file."""
    if not _is_standard_output(path):
        return path.open("wb")
    sys.stdout.flush()
    return os.fdopen(os.dup(1), "wb")


def read_json(path: Path, advice: str) -> Any:
    """Return the JSON in a file. Raises DrkitError, with the advice, if it is invalid or too large."""
    try:
        if path.stat().st_size > _LONGEST_JSON:
            raise ValueError(f"more than {_LONGEST_JSON >> 20} MB")
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DrkitError(f"cannot read {path}: {error.strerror}; {advice}") from None
    except (ValueError, RecursionError) as error:
        raise DrkitError(f"{path} is not valid JSON ({error}); {advice}") from None


def read_log(path: Path) -> list[dict[str, float]]:
    """Return the records of a training's log, a JSON object per line; empty if the file is missing."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def json_text(value: Any) -> str:
    """Return plain data as strictly valid JSON: NaN and infinite numbers become null.

    >>> print(json_text({"p": float("nan")}), end="")
    {
      "p": null
    }
    """
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON, atomically; see `json_text`."""
    write_text(path, json_text(value))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_replaceable(path: Path) -> None:
    """Raise DrkitError if a new folder must not replace what is at `path`.

    It may replace an empty folder, or one that `replacing_folder` wrote and in which nobody has added or changed a file
    since, and write into the folder of an unfinished stage.
    """
    if (path / IDENTITY).is_file():
        return
    if path.exists() and not path.is_dir():
        raise DrkitError(f"{path} is a file; give the path of a folder")
    if path.is_dir() and Path.cwd().is_relative_to(path.resolve()):
        raise DrkitError(f"{path} is the current folder, or contains it; give the path of another folder")
    if (path / MANIFEST).exists():
        raise DrkitError(f"{path} belongs to a run and must not be replaced; choose another folder")
    found = _files_in(path)
    written = read_written(path) if found else {}
    foreign = [
        name
        for name, file in found.items()
        if name not in written or file.is_symlink() or not _is_as_written(file, written[name])
    ]
    if foreign:
        named = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3:,} more" if len(foreign) > 3 else "")
        raise DrkitError(
            f"{path} is not empty: drkit did not write {named} there, or the content has changed; choose another "
            f"folder, or move these files away"
        )


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, which replaces `path` on success and is removed on failure.

    What a link points to is replaced, not the link. The new folder has a list of its files (`WRITTEN`), so that the
    next call knows what it may replace. The folder of an unfinished stage is filled in place: what a killed attempt
    left in it is written again, and the stage is renamed when it is whole.

    Raises DrkitError as `check_replaceable` does, and if the parent folder is not writable.
    """
    if (path / IDENTITY).is_file():
        yield path
        return
    check_replaceable(path)
    path = path.resolve()
    make_folder(path.parent)
    temporary = _beside(path, "tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    _explain_failure(temporary.mkdir, path.parent)
    try:
        yield temporary
        list_written(temporary)
        share_files(temporary)
        old = _beside(path, "old")
        if path.exists():
            check_replaceable(path)  # somebody may have written there meanwhile
            path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
        _log_written(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def list_written(folder: Path) -> None:
    """Write the list of all files in a folder that drkit has just written."""
    files = {name: asdict(FileEntry.of(file)) for name, file in _files_in(folder).items()}
    write_text(folder / WRITTEN, json.dumps(files, indent=1, ensure_ascii=False) + "\n")


def read_written(folder: Path) -> dict[str, FileEntry]:
    """Return the files that drkit wrote into a folder; empty if it has no list of them, or a damaged one."""
    try:
        table = read_json(folder / WRITTEN, "")
        return {name: FileEntry(**entry) for name, entry in table.items()}
    except (DrkitError, AttributeError, TypeError, ValueError):
        return {}


def _files_in(folder: Path) -> dict[str, Path]:
    """Return all files and links below a folder by their names relative to it, without the list of them."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {name: path for name, path in found.items() if name != WRITTEN and (path.is_symlink() or path.is_file())}


def remove_folder(path: Path) -> None:
    """Remove a folder that may be missing. It is renamed first: a kill leaves all of it, or a temporary folder."""
    if path.exists():
        old = _beside(path, "old")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        shutil.rmtree(old)


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left half written below a folder, by the names of such files.

    No other process may be writing there.
    """
    for path in filter(is_temporary, list(folder.rglob(".*"))):
        shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)


def share_files(folder: Path) -> None:
    """Let everyone who may read a folder that drkit has just made read the files in it.

    safetensors creates files that only their owner may read, regardless of the umask.
    """
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            _allow(file, folder.stat().st_mode)


def _allow(file: Path, mode: int) -> None:
    """Let others read or write a file as `mode` does, if now only its owner may."""
    if file.stat().st_mode & 0o777 == 0o600:
        with suppress(OSError):  # some file systems have no permissions
            file.chmod(mode & 0o666)


@frozen
class FileEntry:
    """A file as it was written: its size in bytes, and the hash of its content, empty if only the size is compared.

    Raises TypeError for other types, as of a damaged list.
    """

    bytes: int = field(validator=instance_of(int))
    blake2b: str = field(default="", validator=instance_of(str))

    @classmethod
    def of(cls, path: Path) -> FileEntry:
        """Describe a file."""
        return cls(path.stat().st_size, file_hash(path))


def _is_as_written(path: Path, entry: FileEntry) -> bool:
    """Return whether a file of a folder that may be replaced is the one that drkit wrote."""
    size = path.stat().st_size
    return size == entry.bytes and (size > _LARGEST_HASHED or file_hash(path) == entry.blake2b)


def file_hash(path: Path) -> str:
    """Return the hash of a file's content."""
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            state.update(chunk)
    return state.hexdigest()


def digest(value: Any) -> str:
    """Return a short, stable hash of plain data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# What peft writes beside the weights of an adapter; a folder with only these has the rest in the folder of its base.
ADAPTER = "adapter_config.json"


def adapter_base(folder: Path) -> Path | None:
    """Return the folder of the base model of a folder that has only an adapter; None for any other.

    Raises DrkitError if the base model is not a folder on this machine.
    """
    if not (folder / ADAPTER).is_file() or any(folder.glob("model*.safetensors")):
        return None
    found = read_json(folder / ADAPTER, "save the adapter again")
    name = found.get("base_model_name_or_path") if isinstance(found, dict) else None
    candidates = [folder / name, local_path(name)] if isinstance(name, str) and name else []
    base = next((path for path in candidates if path.is_dir() and not path.samefile(folder)), None)
    if base is None:
        raise DrkitError(
            f"the base model of this adapter is {name!r:.200}, which is not a folder here: set base_model_name_or_path "
            f"to the path of its folder",
            where=folder / ADAPTER,
        )
    return base


def path_state(text: str | Path | None) -> str:
    """Return a fingerprint of the files at a local path; empty for anything else.

    It covers their names (in a folder, with the folders within it), sizes and modification times; of an adapter, also
    those of its base model.
    """
    path = local_path(text) if text else None
    if path is None or not path.exists():
        return ""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    names = [p.relative_to(path).as_posix() if p != path else p.name for p in files]
    states: list[Any] = [(name, p.stat().st_size, p.stat().st_mtime_ns) for name, p in zip(names, files, strict=True)]
    adapters = [p.parent for p in files if p.name == ADAPTER]
    return digest(states + [path_state(base) for folder in adapters if (base := adapter_base(folder))])


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


def _log_written(path: Path) -> None:
    """Log a finished file or folder; below a hidden or temporary folder, only for debugging."""
    folders = {name for name in path.parts if name not in (".", "..")}
    is_scratch = any(name.startswith((".", SCRATCH)) for name in folders)
    _LOGGER.log(logging.DEBUG if is_scratch else logging.INFO, "wrote %s", path)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_lines(lines: Iterable[bytes], path: Path) -> None:
    """Write the lines of a file, atomically; each ends with its line break."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(lines)


def is_temporary(path: Path) -> bool:
    """Return whether a path has a name of what is being written, by this module or by safetensors."""
    return bool(_TEMPORARY.fullmatch(path.name))


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


def _explain_failure(write: Callable[[], None], folder: Path) -> None:
    try:
        write()
    except OSError as error:
        raise DrkitError(f"cannot write to the folder {folder}: {error.strerror}; choose another location") from None
