"""Run by torchrun: a model is trained on two processes; each says which threads it is left with at its end."""

import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from drkit.core import processes


def main(folder):
    with processes.group():
        during = threads()
        wrapped = DistributedDataParallel(torch.nn.Linear(4, 1))
        wrapped.itself = [wrapped]  # as a Trainer's model is: part of a cycle
        wrapped(torch.ones(2, 4)).sum().backward()
        del wrapped
    Path(folder, f"{processes.rank()}.txt").write_text("\n".join(["during", *during, "after", *threads()]))


def threads():
    return [Path(thread, "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]


if __name__ == "__main__":
    main(*sys.argv[1:])
