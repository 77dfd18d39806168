"""The processes of one run, as torchrun or `accelerate launch` starts them, and the threads and memory of each.

Every function works in a single process too: there is nothing to wait for, and a broadcast returns its argument.
They share torch's own group: each training's arguments reset accelerate's state, and a run outlasts its trainings.

OpenMP, by which torch and faiss compute, starts a thread for every core that it sees. It does not see the limit that a
container has on processor time, and a thread that waits for the others keeps its core busy for a while. Both make a
process slow as soon as it has less than the whole machine. Nothing here imports torch before it is needed.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import frozen

# Long enough for whatever the first process does alone (counting, searching, mining) while the others wait.
_TIMEOUT = timedelta(days=14)
THREADS = "OMP_NUM_THREADS"
CGROUPS = Path("/sys/fs/cgroup")
_PROCESS = Path("/proc/self")
_BATCHES_OF: ContextVar[int | None] = ContextVar("batches_of", default=None)


def process_count() -> int:
    """Return the number of processes (WORLD_SIZE)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the number of this process, from 0 (RANK)."""
    return int(os.environ.get("RANK", "0"))


def batch_processes() -> int:
    """Return the number of processes whose texts make up a batch: as set by `batches_of`, or else `process_count`.

    A run keeps the batches of the processes that it began with, however many carry it on.
    """
    return _BATCHES_OF.get() or process_count()


@contextmanager
def batches_of(processes: int) -> Iterator[None]:
    """Make batches in a block as large as those of this many processes; the processes there are divide them."""
    token = _BATCHES_OF.set(processes)
    try:
        yield
    finally:
        _BATCHES_OF.reset(token)


def local_device() -> str:
    """Return the device of this process: the accelerator with its number on this machine (LOCAL_RANK), or `cpu`."""
    import torch

    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}" if torch.cuda.is_available() else "cpu"


@frozen
class Shard:
    """The share of this process in work that several processes divide."""

    rank: int = 0
    processes: int = 1

    @classmethod
    def from_environment(cls) -> Shard:
        """Return the shard that RANK and WORLD_SIZE describe; the whole work if they are not set."""
        return cls(rank(), process_count())

    @property
    def label(self) -> str:
        """The shard in words.

        >>> Shard(1, 4).label
        'process 2 of 4'
        """
        return f"process {self.rank + 1} of {self.processes}"


@contextmanager
def group() -> Iterator[None]:
    """Connect the processes for the length of a block."""
    if process_count() == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    # If torch.distributed.nn is first imported while the group exists, its functions keep the group as a default
    # argument for good, and gloo's threads with it: a tensor that they release during interpreter shutdown aborts the
    # process.
    import torch.distributed.nn

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_TIMEOUT)
    try:
        yield
    finally:
        gc.collect()  # a wrapped model is part of a reference cycle and keeps the group alive
        dist.destroy_process_group()


def barrier() -> None:
    """Wait until all processes have come this far."""
    if process_count() > 1:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.zeros(1))  # unlike dist.barrier, this needs no device


def broadcast(value: Any) -> Any:
    """Return the value of the first process in every process."""
    if process_count() == 1:
        return value
    import torch.distributed as dist

    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def scatter(values: Sequence[Any] | None) -> Any:
    """Return the value that the first process has for this one; values: one for each process, None in the others."""
    if process_count() == 1:
        return values[0] if values else None
    import torch.distributed as dist

    held: list[Any] = [None]
    dist.scatter_object_list(held, None if values is None else [*values], src=0)
    return held[0]


def gather(value: Any) -> list[Any]:
    """Return the values of all processes in the first one, and nothing in the others."""
    if process_count() == 1:
        return [value]
    import torch.distributed as dist

    held = None if rank() else [None] * process_count()
    dist.gather_object(value, held, dst=0)
    return held or []


def available_cores(cgroups: Path = CGROUPS) -> int:
    """Return the cores that this process may use: those of its affinity, within the limit of its container.

    A limit of 1.5 cores counts as 2. cgroups: where the kernel shows the limits.
    """
    cores, limit = len(_affinity()), _processor_limit(cgroups)
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def _affinity() -> set[int]:
    return {*(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))}


def _processor_limit(cgroups: Path) -> float | None:
    """Return the limit in cores of a container, by version 2 or 1 of control groups; None without one."""
    quota, period = _first_words(cgroups / "cpu.max", 2)
    if not period:
        quota, period = (_first_words(cgroups / "cpu" / f"cpu.cfs_{name}_us", 1)[0] for name in ("quota", "period"))
    is_limited = quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0
    return int(quota) / int(period) if is_limited else None


def _first_words(file: Path, count: int) -> list[str]:
    """Return the first words of a file, padded with empty ones."""
    try:
        found = file.read_text(encoding="ascii").split()[:count]
    except (OSError, UnicodeDecodeError):
        found = []
    return found + [""] * (count - len(found))


def use_available_cores(environment: MutableMapping[str, str]) -> None:
    """Set OpenMP's number of threads and how they wait, unless the environment says; before torch or faiss is imported.

    Within a container's limit there are no more threads than cores. Without a limit, libraries choose the number. A
    thread that waits looks a thousand times and then sleeps: sleeping at once makes a step on idle cores nearly twice
    as long, and looking for milliseconds, as OpenMP does by itself, several times as long beside another program.
    """
    cores = available_cores()
    if THREADS not in environment and cores < (os.cpu_count() or 1):
        environment[THREADS] = str(cores)
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "1000")


def configured_threads(environment: Mapping[str, str]) -> int:
    """Return the threads that OpenMP will start: OMP_NUM_THREADS, or one for each available core."""
    given = environment.get(THREADS, "").partition(",")[0].strip()
    return int(given) if given.isdigit() and int(given) else available_cores()


def watch_memory() -> Callable[[], dict[str, int]]:
    """Start watching memory, and return a function that returns the peaks since then, in bytes.

    `host`: the resident memory of this process, without worker processes; only where Linux can reset its counter.
    `gpu`: what torch allocated on the current GPU; only if there is one, and torch had been imported before.
    """
    torch = sys.modules.get("torch")
    cuda = torch.cuda if torch is not None and torch.cuda.is_available() else None
    if cuda is not None:
        cuda.reset_peak_memory_stats()
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")  # resets the peak: see proc(5)
        resets = True
    except OSError:
        resets = False

    def peaks() -> dict[str, int]:
        found = {}
        if resets:
            lines = (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines()
            found["host"] = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        return {**found, "gpu": int(cuda.max_memory_allocated())} if cuda is not None else found

    return peaks
