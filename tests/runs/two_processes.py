"""Run by torchrun: one process' share of a batch; writes the averaged gradients of all."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from drkit.core import processes
from drkit.train import gradients
from tests.runs.test_gradients import TRAINED, shares


def main(kind, chunk, folder):
    module, batch = (made() for made in TRAINED[kind])
    with processes.group():
        loss = taken(module, shares(batch, kind)[processes.rank()], int(chunk))
    if processes.rank() == 0:
        found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        torch.save({"loss": loss, "gradients": found}, Path(folder) / "found.pt")


def taken(module, batch, chunk):
    wrapped = DistributedDataParallel(module.train(), find_unused_parameters=True, broadcast_buffers=False)
    strategy = gradients.GradientStrategy(
        forward=wrapped, backward=lambda loss: loss.backward(), chunk=chunk, accumulate=wrapped.no_sync
    )
    loss, _ = gradients.backward(module, batch, strategy)
    dist.all_reduce(loss)
    return loss / 2


if __name__ == "__main__":
    main(*sys.argv[1:])
