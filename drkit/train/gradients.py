"""The gradients of one batch, however it is cut: into chunks of rows (cached gradients), over processes, or not at all.

Losses come in two sorts. A *local* one (scope `rows`) is a mean over items that can be taken part by part: a part's
loss counts by its share of all items. One that *compares* rows (scope `batch`) needs those of the whole batch, from
every process: the rows are computed without a graph, gathered, compared once, and the gradient of each row is carried
into a second, chunked forward with the same random numbers (GradCache, Gao et al. 2021, which does not replay
dropout). A batch in one piece needs one forward only. The result is the gradient of one big batch, whatever the number
of chunks and processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from attrs import frozen
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


def random_state() -> list[Tensor]:
    """Where the random generators stand, the processor's and the accelerator's."""
    state = [torch.get_rng_state()]
    return [*state, torch.cuda.get_rng_state()] if torch.cuda.is_available() else state


@contextmanager
def random_numbers(state: list[Tensor]) -> Iterator[None]:
    """A block that draws the numbers that followed `state`; after it the generators go on as if it had not been."""
    before = random_state()
    _set_random_state(state)
    try:
        yield
    finally:
        _set_random_state(before)


def _set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])


def precision(device: torch.device) -> partial[torch.autocast]:
    """What makes blocks in which models compute on a device as they do now: a backward runs outside of autocast.

    Casts of weights are not kept: one of a pass without gradients would stand in the way of theirs.
    """
    kind = device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return partial(torch.autocast, kind, dtype=dtype, enabled=enabled, cache_enabled=False)


class Comparing(Protocol):
    """What is compared between rows of the whole batch."""

    # Rows that hold numbers of other rows: name -> the rows they number.
    numbering: Mapping[str, str]

    def compares(self) -> bool:
        """Whether any loss compares rows."""

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted losses f[] over the rows of the whole batch, and figures for the log."""


@runtime_checkable
class PadsRows(Protocol):
    """A module that says what stands at the padding of rows which differ in length between processes."""

    padding: Mapping[str, float]


@runtime_checkable
class CountsParts(Protocol):
    """A module with local losses only that knows their items before it has read a part: chunks are read once then."""

    def count(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How many items each loss of a part is a mean over, named as in a forward's result."""


class Comparable(Comparing, Protocol):
    """A module whose gradients are taken here. Its forward takes and returns plain tensors (see `PREFIXES`)."""

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each local loss."""

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """A batch in parts of at most `size` rows."""


# What a forward returns, by the beginning of a name: local losses, how many items each is a mean over, the rows to
# compare, and figures for the log as `figure.LOSS.NAME`.
LOSS, ITEMS, ROWS, FIGURE = "loss.", "items.", "rows.", "figure."
PREFIXES = (LOSS, ITEMS, ROWS, FIGURE)


@frozen(eq=False)
class GradientStrategy:
    """How gradients are taken. chunk: rows a forward (0: all); forward: the (wrapped) module; backward: of a loss f[].

    accumulate: the context in which a backward does not exchange gradients between processes.
    """

    forward: Callable[..., dict[str, Tensor]]
    backward: Callable[[Tensor], None]
    chunk: int = 0
    accumulate: Callable[[], AbstractContextManager[None]] = nullcontext


def backward(
    module: Comparable, tensors: Mapping[str, Tensor], strategy: GradientStrategy
) -> tuple[Tensor, dict[str, Tensor]]:
    """Add the gradients of one batch to the module's parameters; the loss f[] of this process' share, and its figures.

    Averaged over processes (as DDP does it) gradients and losses are those of the whole batch.
    """
    parts = module.chunks(tensors, strategy.chunk) if strategy.chunk else [dict(tensors)]
    if len(parts) == 1:
        out = strategy.forward(**parts[0])
        return _finish(module, [out], [lambda: out], strategy)
    if isinstance(module, CountsParts) and not module.compares():  # each part stands for itself: one forward is enough
        counts = [module.count(part) for part in parts]
        return _finish(module, counts, [partial(strategy.forward, **part) for part in parts], strategy)
    replays, states = [], []
    for part in parts:
        states.append(random_state())
        with torch.no_grad():
            replays.append(strategy.forward(**part, local=False))
    again = [_replay(strategy, part, state) for part, state in zip(parts, states, strict=True)]
    return _finish(module, replays, again, strategy)


def _replay(
    strategy: GradientStrategy, part: dict[str, Tensor], state: list[Tensor]
) -> Callable[[], dict[str, Tensor]]:
    def forward() -> dict[str, Tensor]:
        with random_numbers(state):
            return strategy.forward(**part)

    return forward


def _finish(
    module: Comparable,
    seen: Sequence[Mapping[str, Tensor]],
    forwards: Sequence[Callable[[], dict[str, Tensor]]],
    strategy: GradientStrategy,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compare the rows of `seen`, then go backward through each of `forwards` with its rows' gradients."""
    processes = world_size()
    totals = _totals(seen, module.weights)
    compared, figures, gradients = compare_rows(module, seen)
    loss = compared.detach()
    for place, forward in enumerate(forwards):
        last = place == len(forwards) - 1
        with nullcontext() if last else strategy.accumulate():  # round the forward too: DDP decides there
            out = forward()
            shares = {name: out[ITEMS + name] / totals[name] * processes for name in module.weights}
            local = [module.weights[name] * out[LOSS + name] * shares[name] for name in module.weights]
            carried = [(out[name] * gradient).sum() * processes for name, gradient in gradients[place].items()]
            strategy.backward(_sum([*local, *carried]))
        loss = loss + _sum([term.detach() for term in local])
        _add_figures(figures, out, shares)
    return loss, figures


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([term.float() for term in terms]).sum() if terms else torch.zeros(())


def _totals(seen: Sequence[Mapping[str, Tensor]], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """How many items each local loss is a mean over, in all parts and processes; at least 1."""
    if not weights:
        return {}
    counts = torch.stack([_sum([out[ITEMS + name] for out in seen]) for name in weights])
    if world_size() > 1:
        dist.all_reduce(counts)
    return dict(zip(weights, counts.clamp(min=1).unbind(), strict=True))


def compare_rows(
    module: Comparing, seen: Sequence[Mapping[str, Tensor]]
) -> tuple[Tensor, dict[str, Tensor], list[dict[str, Tensor]]]:
    """The comparing losses, their figures, and for each part the gradient of each of its rows."""
    if not module.compares():
        return next(iter(seen[0].values())).new_zeros((), dtype=torch.float32), {}, [{} for _ in seen]
    own = _joined(seen)
    leaves, gathered = gather_rows(own, module.numbering, module.padding if isinstance(module, PadsRows) else None)
    loss, figures = module.compare(gathered)
    wanted = [name for name, leaf in leaves.items() if leaf.requires_grad]
    gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, [leaves[name] for name in wanted], allow_unused=True)
    parts: list[dict[str, Tensor]] = [{} for _ in seen]
    for name, gradient in zip(wanted, gradients, strict=True):
        if gradient is None:
            continue
        start = 0
        for place, out in enumerate(seen):
            if ROWS + name in out:
                rows = len(out[ROWS + name])
                parts[place][ROWS + name] = gradient[start : start + rows]
                start += rows
    return loss, figures, parts


def _joined(seen: Sequence[Mapping[str, Tensor]]) -> Rows:
    # In one order everywhere: processes gather name by name, and may have cut their batches differently.
    names = sorted({name for out in seen for name in out if name.startswith(ROWS)})
    return {name[len(ROWS) :]: torch.cat([out[name].detach() for out in seen if name in out]) for name in names}


def _add_figures(figures: dict[str, Tensor], out: Mapping[str, Tensor], shares: Mapping[str, Tensor]) -> None:
    """Adds a part's figures; a loss and its metrics count by their share of the items."""
    for name, share in shares.items():
        for key, value in out.items():
            if key == LOSS + name or key.startswith(f"{FIGURE}{name}."):
                shown = f"{name}_loss" if key == LOSS + name else key[len(FIGURE) :].replace(".", "_")
                figures[shown] = figures.get(shown, torch.zeros_like(share)) + value.detach() * share
