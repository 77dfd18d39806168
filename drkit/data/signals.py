"""Values of signals: a number or vector per token, text or vocabulary entry, written once and memory-mapped.

A signal (`drkit.core.protocols.Signal`) computes the values, `write_signal` checks and stores them, and a `TokenStore`
aligns them with the tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drkit.data.arrays import Arrays, ArrayWriter
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

FILE = "values.arrow"


class SignalValues:
    """The memory-mapped values of a signal, f32[n] or f32[n,K], for n content tokens, texts or vocabulary entries.

    Values of tokens are aligned with `TokenStore.flat_ids`; `TokenStore.batch(.., signals={name: this})` adds them to a
    batch. Picklable.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        arrays = Arrays(self.path)
        self.scope = arrays.metadata["scope"]
        width = int(arrays.metadata["width"])
        flat: NDArray[np.float32] = arrays["values"]
        self.values = flat.reshape(-1, width) if width else flat

    @classmethod
    def open(cls, folder: Path) -> SignalValues:
        """Open what `write_signal` wrote to `folder`. Raises DrkitError if it is missing."""
        return cls(Path(folder) / FILE)

    def __reduce__(self) -> tuple[type[SignalValues], tuple[Path]]:
        return SignalValues, (self.path,)

    def __len__(self) -> int:
        return len(self.values)


def write_signal(
    name: str, chunks: Iterable[ArrayLike], folder: Path, *, scope: str, count: int, metadata: Mapping[str, Any] = {}
) -> SignalValues:
    """Write the values of a signal to `folder`, and open them; chunks: f32[n] or f32[n,K], in order.

    scope: `token`, `text` or `vocabulary`; count: the required number of values.

    Raises DrkitError for more or fewer values, a value that is not finite, or chunks that differ in K.
    """
    width, written = None, 0
    with ArrayWriter(Path(folder) / FILE, {"values": np.float32}) as writer:
        for chunk in chunks:
            values = np.asarray(chunk, dtype=np.float32)
            width = _width(name, values, width)
            if not np.isfinite(values).all():
                raise DrkitError(
                    f"the signal {name!r} is not finite at {scope} {written + _first_wrong(values)} of {count}; "
                    f"use 0 if a value is unknown"
                )
            writer.append(values=values)
            written += len(values)
        writer.metadata = {"scope": scope, "width": width or 0, **metadata}
        if written != count:
            raise DrkitError(
                f"the signal {name!r} gave {written:,} values for {count:,} of scope {scope!r}; give exactly one value "
                f"for each, in order"
            )
    return SignalValues.open(folder)


def _width(name: str, values: NDArray[np.float32], before: int | None) -> int:
    """Return K of f32[n,K], or 0 of f32[n]. Raises DrkitError if it differs from the earlier chunks."""
    if values.ndim not in (1, 2):
        raise DrkitError(f"the signal {name!r} gave values of shape {values.shape}; give f32[n] or f32[n,K]")
    width = values.shape[1] if values.ndim == 2 else 0
    if before is not None and width != before:
        raise DrkitError(
            f"the signal {name!r} gave vectors of {width} values after vectors of {before}; K must be constant"
        )
    return width


def _first_wrong(values: NDArray[np.float32]) -> int:
    wrong = ~np.isfinite(values)
    return int(np.flatnonzero(wrong if wrong.ndim == 1 else wrong.any(1))[0])
