"""Several processes of one run, as torchrun or `accelerate launch` start them.

The first makes every stage; the others wait, and take part in the joint ones. What they write goes to a folder that is
thrown away: the first process' results are the run's.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from drkit.core.ranks import count, local_rank, rank
from drkit.runs.manifest import CHECKPOINTS

__all__ = ["agree", "announce", "count", "local_rank", "rank", "together", "wait", "worker_loop"]

# The others wait for whatever the first does alone: counting, searching, mining.
_PATIENCE = timedelta(days=14)


@contextmanager
def together() -> Iterator[None]:
    """A block in which the processes can talk; alone, nothing happens."""
    if count() == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    # Imported after the group is made, this module keeps it for good (its functions have it as a default), and with
    # it gloo's threads: one that still lets go of a tensor while the interpreter ends aborts the process.
    import torch.distributed.nn

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield
    finally:
        gc.collect()  # a wrapped model is part of a cycle, and holds the group
        dist.destroy_process_group()


def announce(stage: str | None) -> None:
    """Tell the other processes which joint stage begins; None: the run is over."""
    if count() > 1:
        _broadcast(stage)


def wait() -> None:
    """Wait until all processes are here; alone, nothing happens."""
    if count() > 1:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.zeros(1))  # a barrier that needs no device of its own


def agree(decision: bool) -> bool:
    """The first process' decision, in all of them."""
    if count() == 1:
        return decision
    import torch.distributed as dist

    held = [decision]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def worker_loop(make: Callable[[str, Path], object], unfinished: Path) -> None:
    """Call `make(stage, folder)` for every joint stage that the first process announces, until the run is over."""
    while (stage := _broadcast(None)) is not None:
        with tempfile.TemporaryDirectory() as scratch:
            # Checkpoints are shared: each process keeps its random state there.
            Path(scratch, CHECKPOINTS).symlink_to((unfinished / stage / CHECKPOINTS).resolve())
            make(stage, Path(scratch))


def _broadcast(value: str | None) -> str | None:
    import torch.distributed as dist

    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]
