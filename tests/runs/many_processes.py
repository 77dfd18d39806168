"""Run in several processes: one process' share of batches, wrapped in each way; writes the gradients averaged over all.

Names of results are KIND-WRAPPER-CHUNK-STEPS: what is trained, DDP or FSDP2, rows per forward (0: all), and the batches
whose gradients are accumulated.
"""

import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from drkit.core import processes
from drkit.train import gradients
from tests.runs.test_gradients import CASES, TRAINED, reverse, shares


def wrapped(module: torch.nn.Module, wrapper: str) -> tuple[torch.nn.Module, Callable]:
    """The wrapped module, and a context in which its gradients stay in this process."""
    if wrapper == "ddp":
        ddp = DistributedDataParallel(module, find_unused_parameters=True, broadcast_buffers=False)
        return ddp, ddp.no_sync
    sharded = fully_shard(module, mesh=init_device_mesh("cpu", (processes.process_count(),)))

    @contextmanager
    def no_sync():
        sharded.set_requires_gradient_sync(False)
        yield
        sharded.set_requires_gradient_sync(True)

    return sharded, no_sync


def taken(kind: str, wrapper: str, chunk: int, steps: int) -> dict[str, object]:
    """The mean loss over processes and batches, and the gradients."""
    module, batch = (made() for made in TRAINED[kind])
    forward, no_sync = wrapped(module.train(), wrapper)
    strategy = gradients.GradientStrategy(
        forward=forward, backward=lambda loss: (loss / steps).backward(), chunk=chunk, accumulate=no_sync
    )
    total = torch.zeros(())
    for step in range(steps):
        share = shares(batch, kind, processes.process_count())[processes.rank()]
        with no_sync() if step < steps - 1 else nullcontext():
            loss, _ = gradients.backward(module, reverse(share, kind) if step else share, strategy)
        total = total + loss / steps
    dist.all_reduce(total)
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    whole = {name: grad.full_tensor() if wrapper == "fsdp2" else grad for name, grad in found.items()}
    return {"loss": total / processes.process_count(), "gradients": whole}


def main(folder: str) -> None:
    with processes.group():
        found = {"-".join(map(str, case)): taken(*case) for case in CASES}
        if processes.rank() == 0:
            torch.save(found, Path(folder) / "found.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
