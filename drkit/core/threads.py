"""How many threads a process should use; imports no torch.

OpenMP, by which torch and faiss compute, starts a thread for every core that it sees. It does not see the limit that a
container has on processor time, and a thread that waits for the others keeps its core busy for a while. Both make a
process slow as soon as it has less than the whole machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

COUNT = "OMP_NUM_THREADS"
CGROUPS = Path("/sys/fs/cgroup")


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
    quota, period = _words(cgroups / "cpu.max", 2)
    if not period:
        quota, period = (_words(cgroups / "cpu" / f"cpu.cfs_{name}_us", 1)[0] for name in ("quota", "period"))
    is_limited = quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0
    return int(quota) / int(period) if is_limited else None


def _words(file: Path, count: int) -> list[str]:
    """Return the first words of a file, padded with empty ones."""
    try:
        found = file.read_text(encoding="ascii").split()[:count]
    except (OSError, UnicodeDecodeError):
        found = []
    return found + [""] * (count - len(found))


def use_available_cores(environment: MutableMapping[str, str]) -> None:
    """Set OpenMP's number of threads, unless the environment already says; before torch or faiss are imported.

    Within a container's limit there are no more of them than cores. Without a limit, libraries choose the number. How
    threads wait is left alone: on idle cores, threads that sleep at once make a step nearly twice as long.
    """
    cores = available_cores()
    if COUNT not in environment and cores < (os.cpu_count() or 1):
        environment[COUNT] = str(cores)


def configured_threads(environment: Mapping[str, str]) -> int:
    """Return the threads that OpenMP will start: OMP_NUM_THREADS, or one for each available core."""
    given = environment.get(COUNT, "").partition(",")[0].strip()
    return int(given) if given.isdigit() and int(given) else available_cores()


def free_cores(seconds: float = 0.2) -> float:
    """Return how many of the available cores other programs leave free, measured for some seconds."""
    import psutil

    own = psutil.Process()
    before = own.cpu_times()
    shares = psutil.cpu_percent(interval=seconds, percpu=True)
    after = own.cpu_times()
    mine = float(after.user + after.system - before.user - before.system) / seconds
    others = float(sum(shares[core] for core in _affinity() if core < len(shares))) / 100 - mine
    return max(0.0, min(float(available_cores()), len(_affinity()) - max(0.0, others)))


def busy_note(threads: int, free: float) -> str:
    """Return what to expect if other programs leave fewer than half of the threads a core; empty if they do not.

    >>> busy_note(4, 3.5)
    ''
    """
    if free >= threads / 2:
        return ""
    fewer = f", or set {COUNT} to fewer threads to leave them their share" if threads > 1 else ""
    return (
        f"{threads} thread{'s' * (threads > 1)} configured, but other programs leave only about {free:.1f} of "
        f"{available_cores()} cores free: expect this to take longer than estimated. Stop other programs{fewer}"
    )
