"""Run in two processes: each process takes half of a batch with cached gradients under DDP; the first writes them."""

import sys
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from drkit.core import processes
from drkit.losses import ContrastiveLoss
from drkit_sentence_transformers import CachedGradients
from tests.runs.test_cached import CONTRASTIVE, Bag, columns


def main(folder):
    rank, model = processes.rank(), Bag()
    with processes.group():
        wrapped = DistributedDataParallel(model, broadcast_buffers=False)
        half = [{"input_ids": f["input_ids"][6 * rank : 6 * rank + 6]} for f in columns(3, rows=12)]
        CachedGradients(wrapped, ContrastiveLoss(CONTRASTIVE), chunk=4)(half).backward()
        del wrapped  # the last reference to a group must not be a model's: gloo's threads wait for it, and it for them
    if rank == 0:
        torch.save(model.words.weight.grad, Path(folder) / "found.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
