"""Several processes of one run, as torchrun or `accelerate launch` start them; one process where they say nothing."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from attrs import frozen


def count() -> int:
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of them this is; the first is 0."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Which of the processes on this machine it is: the number of its accelerator."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def own_device() -> str:
    """This process' accelerator where there is one, else the processor."""
    import torch

    return f"cuda:{local_rank()}" if torch.cuda.is_available() else "cpu"


@frozen
class Shard:
    """One of several processes that share a piece of work."""

    rank: int = 0
    processes: int = 1

    @classmethod
    def of_environment(cls) -> Shard:
        """As torchrun says it: RANK and WORLD_SIZE; one process where they are not set."""
        return cls(rank(), count())

    @property
    def words(self) -> str:
        """`process 2 of 4`.

        >>> Shard(1, 4).words
        'process 2 of 4'
        """
        return f"process {self.rank + 1} of {self.processes}"


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


def broadcast(value: str | None) -> str | None:
    """Return the first process' value, in all of them; there must be several."""
    import torch.distributed as dist

    held = [value]
    dist.broadcast_object_list(held, src=0)
    return held[0]
