"""The contract of batches: as many as asked for, of different rows, by the arguments alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drkit.batching.drawing import checked_batches
from drkit.core.spec import BATCHING, ComponentSpec, Kind, provided_by
from drkit.core.types import BatchRows
from drkit.testing.specs import build, checked_spec, require, running
from drkit.testing.toys import toy_context

_ROWS = 24


def check_batches(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the contract of batches on a spec or the name of an installed part, with default settings or `config`.

    A call must return `count` batches, each of 1 to `size` different rows; the same for the same arguments, whatever
    was called before; and leave the rows as they are.
    """
    spec, config = checked_spec(Kind.BATCHES, part, config)
    rows = toy_batch_rows(spec.receives_of(config))
    batches = build(spec, config, toy_context())
    require(callable(batches), f"{spec.name}: batches must be callable, got {type(batches).__name__}")
    for size in (4, 5, _ROWS):
        for epoch in (0, 3):
            found = _call(batches, rows, size, epoch, spec.name)
            again = _call(build(spec, config, toy_context()), rows, size, epoch, spec.name)
            same = all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))
            require(same, f"{spec.name}: a new part gives other batches of epoch {epoch} for the same arguments")


def toy_batch_rows(receives: Collection[str]) -> BatchRows:
    """Return 24 toy queries with these names: of two data sets, 6 documents, 3 values of a column; none can be written.

    Half of the queries have two positives, of different documents.
    """
    numbers = np.arange(_ROWS)
    vectors = np.random.default_rng(0).normal(size=(_ROWS, 8)).astype(np.float32)
    values: dict[str, Any] = {
        "query_ids": [f"{'a' if number % 3 else 'b'}/{number}" for number in range(_ROWS)],
        "query_lengths": _fixed((3 + numbers * 7 % 10).astype(np.int32)),
        "positive_ids": [_positives(number) for number in range(_ROWS)],
        "query_vectors": _fixed(vectors),
    }
    columns = {name: _fixed(numbers % 3) for name in sorted({*receives} - {*provided_by(BATCHING)})}
    return BatchRows(_ROWS, **{name: value for name, value in values.items() if name in receives}, columns=columns)


def _positives(number: int) -> Sequence[str]:
    first = f"d{number % 6}#{number // 6}"
    return [first] if number % 2 else [first, f"d{(number + 1) % 6}#0"]


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    values.flags.writeable = False
    return values


def _call(batches: Any, rows: BatchRows, size: int, epoch: int, name: str) -> list[NDArray[np.int64]]:
    count = max(len(rows) // size, 1)
    with running(name, f"called with (rows, size={size}, count={count}, seed=1, epoch={epoch})"):
        found = batches(rows, size=size, count=count, seed=1, epoch=epoch)
        return checked_batches(found, rows, size=size, count=count, title=name)
