"""Which of several processes this one is, as torchrun and `accelerate launch` say it; alone where they say nothing."""

from __future__ import annotations

import os

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
