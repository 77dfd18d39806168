"""The gradients of one batch, however it is cut: into chunks (cached gradients), over processes, or not at all.

There are two sorts of losses. A *local* loss (scope `rows`) is a mean over items and can be computed chunk by chunk: a
chunk's loss counts by its share of all items, which are those of all batches of an optimizer step. A *comparing* loss
(scope `batch`) needs the rows of the whole batch, from every process: the rows are computed without a graph, gathered,
compared once, and the gradient of each row is carried into a second, chunked forward with the same random numbers
(GradCache, Gao et al. 2021, which does not replay dropout). A batch in one chunk needs only one forward. The result is
the gradient of the whole batch, whatever the number of chunks and processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor

Rows = dict[str, Tensor]
# The tensors that a forward returns, by prefix: local losses, the number of items each is a mean over, the rows to
# compare, and metrics for the log as `metric.LOSS.NAME`.
LOSS, ITEMS, ROWS, METRIC = "loss.", "items.", "rows.", "metric."
PREFIXES = (LOSS, ITEMS, ROWS, METRIC)


@frozen(eq=False)
class GradientStrategy:
    """How gradients are computed.

    chunk: rows per forward (0: all); forward: the (wrapped) module; backward: called with a loss f[] (default: its own
    `backward`); accumulate: the context in which a backward does not exchange gradients between processes. batches:
    those of an optimizer step, over which comparing losses are averaged; totals: the number of items of each local loss
    in all of them (`count_step`), None for a step of one batch.
    """

    forward: Callable[..., dict[str, Tensor]]
    backward: Callable[[Tensor], None] = Tensor.backward
    chunk: int = 0
    accumulate: Callable[[], AbstractContextManager[None]] = nullcontext
    batches: int = 1
    totals: Mapping[str, Tensor] | None = None


class Comparing(Protocol):
    """Compares rows of the whole batch."""

    # Rows that hold indices of other rows: name -> the rows they index.
    row_indices: Mapping[str, str]

    def compares(self) -> bool:
        """Return whether any loss compares rows."""

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted losses f[] over the rows of the whole batch, and metrics for the log."""


class Comparable(Comparing, Protocol):
    """A module whose gradients are computed here. Its forward takes and returns plain tensors (see `PREFIXES`)."""

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each local loss."""

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """Cut a batch into chunks of at most `size` rows."""


@runtime_checkable
class PadsRows(Protocol):
    """A module that declares the padding value of rows whose length differs between processes."""

    padding: Mapping[str, float]


@runtime_checkable
class CountsParts(Protocol):
    """A module that counts the items of its local losses before it reads a batch, so that one forward suffices."""

    def count(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the number of items of each local loss, named as in a forward's result; None if only that says."""


def backward(
    module: Comparable, tensors: Mapping[str, Tensor], strategy: GradientStrategy
) -> tuple[Tensor, dict[str, Tensor]]:
    """Add the gradients of one batch to the module's parameters.

    Returns the loss f[] of this process' share, and its metrics. Averaged over processes (as by DDP), gradients and
    losses are those of the whole batch: its part of the step's.
    """
    chunks = module.chunks(tensors, strategy.chunk) if strategy.chunk else [dict(tensors)]
    if len(chunks) == 1:
        out = strategy.forward(**chunks[0])
        return _finish(module, [out], [lambda: out], strategy)
    if not module.compares() and (counts := _counts(module, chunks, strategy)) is not None:
        # Chunks are independent: one forward is enough.
        return _finish(module, counts, [partial(strategy.forward, **chunk) for chunk in chunks], strategy)
    outputs, states = [], []
    for chunk in chunks:
        states.append(get_random_state())
        with torch.no_grad():
            outputs.append(strategy.forward(**chunk, local=False))
    replays = [_replay(strategy, chunk, state) for chunk, state in zip(chunks, states, strict=True)]
    return _finish(module, outputs, replays, strategy)


def count_step(
    module: Comparable, batches: Iterable[Mapping[str, Tensor]], device: torch.device
) -> dict[str, Tensor] | None:
    """Return the number of items of each local loss in the batches of a step, over all processes.

    batches: those of this process. If only a forward pass can count a batch's items, it is read once on the device,
    without a graph and without using up random numbers. Returns None if the module has no local losses.
    """
    if not module.weights:
        return None
    outputs = []
    for tensors in batches:
        counted = module.count(tensors) if isinstance(module, CountsParts) else None
        if counted is None:
            counted = _read_once(module, tensors, device)
        outputs.append({name: value.to(device) for name, value in counted.items() if name.startswith(ITEMS)})
    return _count_items(outputs, module.weights)


def _read_once(module: Any, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return what a forward pass without losses returns."""
    with torch.no_grad(), use_random_state(get_random_state()):
        found: dict[str, Tensor] = module(**{name: t.to(device) for name, t in tensors.items()}, local=False)
    return found


def _counts(
    module: Comparable, chunks: Sequence[Mapping[str, Tensor]], strategy: GradientStrategy
) -> list[dict[str, Tensor]] | None:
    """Return the items of each chunk, as far as they are needed; None if only forward passes can count them."""
    if strategy.totals is not None:
        return [{} for _ in chunks]
    counts = [module.count(chunk) for chunk in chunks] if isinstance(module, CountsParts) else [None]
    return None if None in counts else [one for one in counts if one is not None]


def _replay(
    strategy: GradientStrategy, chunk: dict[str, Tensor], state: list[Tensor]
) -> Callable[[], dict[str, Tensor]]:
    def forward() -> dict[str, Tensor]:
        with use_random_state(state):
            return strategy.forward(**chunk)

    return forward


def _finish(
    module: Comparable,
    outputs: Sequence[Mapping[str, Tensor]],
    forwards: Sequence[Callable[[], dict[str, Tensor]]],
    strategy: GradientStrategy,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compare the rows of `outputs`, then go backward through each of `forwards` with its rows' gradients."""
    processes = world_size()
    totals = _count_items(outputs, module.weights) if strategy.totals is None else strategy.totals
    compared, metrics, gradients = compare_rows(module, outputs)
    loss = compared.detach() / strategy.batches
    metrics = {name: value.detach() / strategy.batches for name, value in metrics.items()}
    scale = processes / strategy.batches
    for index, forward in enumerate(forwards):
        is_last = index == len(forwards) - 1
        with nullcontext() if is_last else strategy.accumulate():  # around the forward too: DDP decides there
            out = forward()
            shares = {name: out[ITEMS + name] / totals[name] * processes for name in module.weights}
            local = [module.weights[name] * out[LOSS + name] * shares[name] for name in module.weights]
            carried = [(out[name] * gradient).sum() * scale for name, gradient in gradients[index].items()]
            strategy.backward(_sum([*local, *carried]))
        loss = loss + _sum([term.detach() for term in local])
        _add_metrics(metrics, out, shares)
    return loss, metrics


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([term.float() for term in terms]).sum() if terms else torch.zeros(())


def _count_items(outputs: Sequence[Mapping[str, Tensor]], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Return the number of items of each local loss, over all chunks and processes; at least 1."""
    if not weights:
        return {}
    counts = torch.stack([_sum([out[ITEMS + name] for out in outputs]) for name in weights])
    if world_size() > 1:
        dist.all_reduce(counts)
    return dict(zip(weights, counts.clamp(min=1).unbind(), strict=True))


def _add_metrics(metrics: dict[str, Tensor], out: Mapping[str, Tensor], shares: Mapping[str, Tensor]) -> None:
    """Add a chunk's local losses and their metrics, weighted by the chunk's share of the items."""
    for name, share in shares.items():
        for key, value in out.items():
            if key == LOSS + name or key.startswith(f"{METRIC}{name}."):
                shown = f"{name}_loss" if key == LOSS + name else key[len(METRIC) :].replace(".", "_")
                metrics[shown] = metrics.get(shown, torch.zeros_like(share)) + value.detach() * share


def compare_rows(
    module: Comparing, outputs: Sequence[Mapping[str, Tensor]]
) -> tuple[Tensor, dict[str, Tensor], list[dict[str, Tensor]]]:
    """Return the comparing losses, their metrics, and for each chunk the gradient of each of its rows."""
    if not module.compares():
        return torch.zeros(()), {}, [{} for _ in outputs]
    padding = module.padding if isinstance(module, PadsRows) else None
    leaves, gathered = gather_rows(join_rows(outputs), module.row_indices, padding)
    loss, metrics = module.compare(gathered)
    names = [name for name, leaf in leaves.items() if leaf.requires_grad]
    gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, [leaves[name] for name in names], allow_unused=True)
    by_chunk: list[dict[str, Tensor]] = [{} for _ in outputs]
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is None:
            continue
        start = 0
        for chunk, out in zip(by_chunk, outputs, strict=True):
            if ROWS + name in out:
                rows = len(out[ROWS + name])
                chunk[ROWS + name] = gradient[start : start + rows]
                start += rows
    return loss, metrics, by_chunk


def join_rows(outputs: Sequence[Mapping[str, Tensor]]) -> Rows:
    """Concatenate the rows of all chunks, by name, detached."""
    # Sorted: all processes gather in the same order, even if they cut their batches differently.
    names = sorted({name for out in outputs for name in out if name.startswith(ROWS)})
    return {name[len(ROWS) :]: torch.cat([out[name].detach() for out in outputs if name in out]) for name in names}


def gather_rows(
    rows: Rows, row_indices: Mapping[str, str], padding: Mapping[str, float] | None = None
) -> tuple[Rows, Rows]:
    """Return this process' rows as leaves, and the rows of all processes with those leaves among them.

    rows: [R, ..] by name. R may differ between processes; other axes are padded to the longest, with `padding_of`, or
    the value that `padding` has for a name. Rows named in `row_indices` hold indices of other rows
    and are shifted by the number of rows of earlier processes; -1 stays -1.
    """
    leaves = {name: row.detach().requires_grad_(row.is_floating_point()) for name, row in rows.items()}
    if world_size() == 1:
        return leaves, leaves
    found: list[Mapping[str, Sequence[int]]] = [{}] * world_size()
    dist.all_gather_object(found, {name: list(row.shape) for name, row in rows.items()})
    shapes = {name: [one[name] for one in found] for name in rows}
    rank, gathered = dist.get_rank(), {}
    for name, leaf in leaves.items():
        fill = (padding or {}).get(name)
        blocks = _all_gather(leaf.detach(), shapes[name], fill)
        blocks[rank] = _pad_to(leaf, blocks[rank].shape, fill)
        if name in row_indices:
            counts = [int(shape[0]) for shape in shapes[row_indices[name]]]
            blocks = [torch.where(block < 0, block, block + sum(counts[:at])) for at, block in enumerate(blocks)]
        gathered[name] = torch.cat(blocks)
    return leaves, gathered


def _all_gather(row: Tensor, shapes: Sequence[Sequence[int]], fill: float | None) -> list[Tensor]:
    """Return every process' block: its own number of rows, all other axes padded to the longest.

    accelerate's `gather` would copy all blocks once more, and `pad_across_processes` pads one axis at a time.
    """
    longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
    mine = _pad_to(row, longest, fill).contiguous()
    # gloo does not support bool: send bytes.
    sent = mine.byte() if mine.dtype == torch.bool else mine
    found = [torch.empty_like(sent) for _ in shapes]
    dist.all_gather(found, sent)
    return [block[: shape[0]].to(row.dtype) for block, shape in zip(found, shapes, strict=True)]


def _pad_to(row: Tensor, shape: Sequence[int], fill: float | None) -> Tensor:
    missing = [size - have for size, have in zip(shape, row.shape, strict=True)]
    if not any(missing):
        return row
    pads = [amount for size in reversed(missing) for amount in (0, size)]
    return torch.nn.functional.pad(row, pads, value=padding_of(row) if fill is None else fill)


def padding_of(row: Tensor) -> float:
    """Return what pads a tensor of its type: NaN, -1 or False."""
    return math.nan if row.is_floating_point() else 0 if row.dtype == torch.bool else -1


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def get_random_state() -> list[Tensor]:
    """Return the states of torch's random generators: the CPU's, and the accelerator's if available."""
    state = [torch.get_rng_state()]
    return [*state, torch.cuda.get_rng_state()] if torch.cuda.is_available() else state


@contextmanager
def use_random_state(state: list[Tensor]) -> Iterator[None]:
    """Run a block with torch's random generators in `state`, and restore them afterwards."""
    before = get_random_state()
    _set_random_state(state)
    try:
        yield
    finally:
        _set_random_state(before)


def _set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1])


def current_autocast(device: torch.device) -> partial[torch.autocast]:
    """Return a factory of contexts with the current autocast of a device, for use in a backward, which runs outside it.

    Casts of weights are not cached: a cast made without gradients would be reused where gradients are needed.
    """
    kind = device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return partial(torch.autocast, kind, dtype=dtype, enabled=enabled, cache_enabled=False)
