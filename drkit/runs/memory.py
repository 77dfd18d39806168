"""The peak memory of a stage, for its manifest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

_PROCESS = Path("/proc/self")


def watch_memory() -> Callable[[], dict[str, int]]:
    """Begin to watch; the function that is returned gives the peaks since then, in bytes.

    `host`: the resident memory of this process, without worker processes; only where Linux can reset its counter.
    `gpu`: what torch allocated on the current GPU; only if there is one, and torch had been imported before.
    """
    torch = sys.modules.get("torch")
    cuda = torch.cuda if torch is not None and torch.cuda.is_available() else None
    if cuda is not None:
        cuda.reset_peak_memory_stats()
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")  # the peak begins anew: see proc(5)
        resets = True
    except OSError:
        resets = False

    def peaks() -> dict[str, int]:
        found = {"host": _peak_resident()} if resets else {}
        return {**found, "gpu": int(cuda.max_memory_allocated())} if cuda is not None else found

    return peaks


def _peak_resident() -> int:
    lines = (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
