"""The processes of one run, as torchrun or `accelerate launch` starts them; a single process without either.

Every function works in a single process too: there is nothing to wait for, and a broadcast returns its argument.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from attrs import frozen

# Long enough for whatever the first process does alone (counting, searching, mining) while the others wait.
_TIMEOUT = timedelta(days=14)


def count() -> int:
    """Return the number of processes (WORLD_SIZE)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the number of this process, from 0 (RANK)."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Return the number of this process on its machine, which is also the number of its accelerator (LOCAL_RANK)."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_device() -> str:
    """Return the device of this process: its accelerator if torch sees one, else `cpu`."""
    import torch

    return f"cuda:{local_rank()}" if torch.cuda.is_available() else "cpu"


@frozen
class Shard:
    """The share of this process in work that several processes divide."""

    rank: int = 0
    processes: int = 1

    @classmethod
    def from_environment(cls) -> Shard:
        """Return the shard that RANK and WORLD_SIZE describe; the whole work if they are not set."""
        return cls(rank(), count())

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
    if count() == 1:
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
    if count() > 1:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.zeros(1))  # unlike dist.barrier, this needs no device


def broadcast(value: Any) -> Any:
    """Return the value of the first process in every process."""
    if count() == 1:
        return value
    import torch.distributed as dist

    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]
