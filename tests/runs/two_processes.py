"""Run by torchrun: one process' share of a batch; writes the averaged gradients of all."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from drkit.runs.training import gradients
from tests.runs.test_gradients import auto_encoder, bi_encoder, paired_batch, pairs_batch, shares


def main(kind, chunk, folder):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    module, batch = (auto_encoder(), paired_batch()) if kind == "pretrain" else (bi_encoder(), pairs_batch())
    wrapped = DistributedDataParallel(module.train(), find_unused_parameters=True, broadcast_buffers=False)
    way = gradients.Way(
        forward=wrapped, backward=lambda loss: loss.backward(), chunk=int(chunk), accumulate=wrapped.no_sync
    )
    loss, _ = gradients.take(module, shares(batch, kind)[rank], way)
    dist.all_reduce(loss)
    if rank == 0:
        found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        torch.save({"loss": loss / 2, "gradients": found}, Path(folder) / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
