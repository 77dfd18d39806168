"""Rows of all processes, with this process' own among them as leaves to take gradients of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Rows = dict[str, Tensor]


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gather_rows(
    rows: Rows, numbering: Mapping[str, str], padding: Mapping[str, float] | None = None
) -> tuple[Rows, Rows]:
    """(this process' rows as leaves, the rows of all processes with those leaves among them).

    rows: [R, ..] by name, R may differ between processes; other axes are padded to the longest, with -1 where rows
    hold integers, NaN where they hold floats, or with what `padding` says of a name. Rows named in `numbering` hold
    numbers of other rows and are moved on by the rows of earlier processes; -1 stays -1.
    """
    leaves = {name: row.detach().requires_grad_(row.is_floating_point()) for name, row in rows.items()}
    if world_size() == 1:
        return leaves, leaves
    sizes = {name: _shapes(row) for name, row in rows.items()}
    rank, gathered = dist.get_rank(), {}
    for name, leaf in leaves.items():
        fill = (padding or {}).get(name)
        blocks = _all_gather(leaf.detach(), sizes[name], fill)
        blocks[rank] = _widened(leaf, blocks[rank].shape, fill)
        if name in numbering:
            counted = [int(shape[0]) for shape in sizes[numbering[name]]]
            blocks = [torch.where(block < 0, block, block + sum(counted[:place])) for place, block in enumerate(blocks)]
        gathered[name] = torch.cat(blocks)
    return leaves, gathered


def _shapes(row: Tensor) -> list[list[int]]:
    mine = torch.tensor(row.shape, device=row.device)
    found = [torch.empty_like(mine) for _ in range(world_size())]
    dist.all_gather(found, mine)
    return [shape.tolist() for shape in found]


def _all_gather(row: Tensor, shapes: Sequence[Sequence[int]], fill: float | None) -> list[Tensor]:
    """Every process' block: its own rows, all other axes as long as the longest."""
    longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    mine = _widened(row, longest, fill).contiguous()
    # gloo has no bool: bytes go over the wire.
    sent = mine.byte() if mine.dtype == torch.bool else mine
    found = [torch.empty_like(sent) for _ in shapes]
    dist.all_gather(found, sent)
    return [block[: shape[0]].to(row.dtype) for block, shape in zip(found, shapes, strict=True)]


def _widened(row: Tensor, shape: Sequence[int], fill: float | None) -> Tensor:
    missing = [size - have for size, have in zip(shape, row.shape, strict=True)]
    if not any(missing):
        return row
    pads = [amount for size in reversed(missing) for amount in (0, size)]
    usual = math.nan if row.is_floating_point() else 0 if row.dtype == torch.bool else -1
    return torch.nn.functional.pad(row, pads, value=usual if fill is None else fill)
