"""Examine an installation: whether drkit can work here, and what would make it work better."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path

import psutil
from attrs import frozen
from packaging.requirements import Requirement

from drkit.core.files import local_path
from drkit.core.hub import hub_cache
from drkit.core.processes import available_cores, busy_note, configured_threads, free_cores
from drkit.core.registry import DRKIT, Installed, package_of
from drkit.errors import EXTRAS

OK, WARNING, ERROR = STATES = ("ok", "warning", "error")
NEWEST_PYTHON = (3, 13)
# Bytes below which runs get into trouble: a small run keeps some hundred megabytes, one of BERT-base some gigabytes.
_LITTLE_SPACE, _LITTLE_MEMORY = 5 << 30, 4 << 30
# Extras beside faiss that `drkit[all]` installs.
_USUAL = ("bm25", "data", "nltk", "plots", "sentence-transformers", "serve")
# Seconds: the built-in parts take less than a tenth of a second.
_SLOW_PLUGIN = 0.5


@frozen
class Check:
    """One thing that was examined: its name, state (one of `STATES`), what was found, and advice if it is not ok.

    drkit cannot work if any state is `error`.
    """

    name: str
    state: str
    found: str
    advice: str = ""


def examine(parts: Installed, runs: Path = Path("runs")) -> list[Check]:
    """Examine Python, the packages, devices, threads, memory, disks and plugins; runs: the folder of runs."""
    hub, offline = hub_cache()
    return [
        _python(),
        *_packages(),
        *_devices(),
        _faiss(),
        _extras(),
        _threads(),
        _memory(),
        _disk("folder of runs", runs, WARNING, "choose another folder with --run-dir"),
        _disk("temporary folder", Path(tempfile.gettempdir()), ERROR, "set TMPDIR to a folder on a larger disk"),
        _ir_datasets(),
        Check("hub cache", OK, f"{hub}{'; HF_HUB_OFFLINE: only cached models are used' * offline}"),
        *_plugins(parts),
    ]


def can_work(checks: Sequence[Check]) -> bool:
    """Return whether no check found an error."""
    return all(check.state != ERROR for check in checks)


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] > NEWEST_PYTHON:
        return Check("Python", WARNING, found, "drkit is tested with Python 3.10 to 3.13: prefer one of these")
    return Check("Python", OK, found)


def _packages() -> Iterator[Check]:
    """Compare the installed packages with what drkit requires."""
    try:
        own = distribution(DRKIT)
    except PackageNotFoundError:
        yield Check("drkit", ERROR, "not installed as a package", "install it: pip install -e . in its folder")
        return
    yield Check("drkit", OK, f"{own.version} ({Path(__file__).parents[1]})")
    for name in ("torch", "transformers"):
        if installed := _version(name):
            yield Check(name, OK, installed)
    for requirement in map(Requirement, own.requires or ()):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = _version(requirement.name)
        if installed is None or not requirement.specifier.contains(installed, prereleases=True):
            found = f"{installed or 'missing'}; drkit needs {requirement.specifier}"
            yield Check(requirement.name, ERROR, found, f"pip install '{requirement.name}{requirement.specifier}'")


def _devices() -> Iterator[Check]:
    """Load torch, and list the accelerators that it sees."""
    try:
        import torch
    except Exception as error:  # a broken installation may fail in any way: missing libraries, another architecture
        yield Check("devices", ERROR, f"torch cannot be imported: {error}", "install torch again: pip install torch")
        return
    names = [_gpu(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    if names:
        yield Check("devices", OK, f"{', '.join(names)}; CUDA {torch.version.cuda or torch.version.hip}")
    elif Path("/dev/nvidiactl").exists():
        advice = "install a torch with CUDA, and a driver that is new enough for it: see https://pytorch.org"
        yield Check("devices", WARNING, f"a GPU, but torch {torch.__version__} cannot use it", advice)
    else:
        yield Check("devices", OK, "CPU only: --scale small trains from scratch in minutes")


def _gpu(index: int) -> str:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    return f"{torch.cuda.get_device_name(index)} ({free / 2**30:.0f} of {total / 2**30:.0f} GB free)"


def _faiss() -> Check:
    for name in ("faiss-cpu", "faiss-gpu"):
        if installed := _version(name):
            return Check("faiss", OK, f"{name} {installed}")
    advice = "approximate indexes need it: pip install 'drkit[cpu]', or 'drkit[gpu]'"
    return Check("faiss", WARNING, "not installed", advice)


def _extras() -> Check:
    missing = [extra for extra in _USUAL if not all(map(find_spec, EXTRAS[extra]))]
    if missing:
        advice = f"what needs one says so: pip install 'drkit[{','.join(missing)}]'"
        return Check("extras", WARNING, f"not installed: {', '.join(missing)}", advice)
    return Check("extras", OK, ", ".join(_USUAL))


def _threads() -> Check:
    cores, given = available_cores(), os.environ.get("OMP_NUM_THREADS", "")
    found = f"{cores} CPU cores, OMP_NUM_THREADS {given or 'not set'}"
    if given.isdigit() and int(given) < cores:
        return Check("threads", WARNING, found, f"torch uses {given} of them: unset OMP_NUM_THREADS to use all")
    if given.isdigit() and int(given) > cores:
        return Check("threads", WARNING, found, f"more threads than cores slow torch down: OMP_NUM_THREADS={cores}")
    if advice := busy_note(configured_threads(os.environ), free_cores()):
        return Check("threads", WARNING, found, advice)
    return Check("threads", OK, found)


def _memory() -> Check:
    memory = psutil.virtual_memory()
    found = f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GB free"
    if memory.available < _LITTLE_MEMORY:
        advice = "use smaller batches (per_device_train_batch_size) or --set pretrain.gradient_cache_chunk=16"
        return Check("memory", WARNING, found, advice)
    return Check("memory", OK, found)


def _disk(name: str, folder: Path, worst: str, remedy: str) -> Check:
    """Check that files can be written below a folder, or below the nearest one that exists, and the free space.

    worst: the state if they cannot.
    """
    path = folder.resolve()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    found = f"{path}, {free / 2**30:,.1f} GB free"
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Check(name, worst, f"{path} is not writable", remedy)
    if free < _LITTLE_SPACE:
        return Check(name, WARNING, found, f"a run with a large encoder needs more: free some space, or {remedy}")
    return Check(name, OK, found)


def _ir_datasets() -> Check:
    home = local_path(os.environ.get("IR_DATASETS_HOME") or "~/.ir_datasets")
    if not home.is_dir():
        return Check("ir_datasets", OK, f"{home} (nothing downloaded yet); IR_DATASETS_HOME chooses another folder")
    names = sorted(path.name for path in home.iterdir() if path.is_dir() and any(path.iterdir()))
    return Check(
        "ir_datasets", OK, f"{home}: {', '.join(names[:8]) or 'nothing downloaded yet'}{', ..' * (len(names) > 8)}"
    )


def _plugins(parts: Installed) -> Iterator[Check]:
    for plugin in parts.plugins:
        name, found = f"plugin {plugin.name}", f"{plugin.provider}, loaded in {plugin.seconds * 1000:.0f} ms"
        problems = [problem for problem in (plugin.error, *plugin.problems) if problem]
        own = package_of(plugin.provider) == DRKIT
        if problems:
            advice = "install drkit again" if own else f"update or uninstall {package_of(plugin.provider)}"
            yield Check(name, ERROR if own else WARNING, f"{plugin.provider}: {'; '.join(problems)}", advice)
        elif plugin.imported_torch or plugin.seconds > _SLOW_PLUGIN:
            slow = "it imports torch" if plugin.imported_torch else "it is slow"
            yield Check(name, WARNING, found, f"{slow}, so that every command starts late: ask its author to fix it")
        else:
            yield Check(name, OK, found)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
