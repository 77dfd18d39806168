"""The signal `idf`: the inverse document frequency of every entry of the encoder's vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drkit.data.frequencies import open_idf, write_frequencies

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from drkit.core.protocols import SignalTexts
    from drkit.signals.specs import IdfConfig


class IdfSignal:
    """f32 a vocabulary entry: `log(texts / texts with it)` (`drkit.data.frequencies`)."""

    def __init__(self, config: IdfConfig, _context: object = None) -> None:
        self.config = config

    def fit(self, texts: SignalTexts, folder: Path) -> Mapping[str, Any]:
        """Count the texts that each entry occurs in; returns counts: texts, words (entries that occur)."""
        return write_frequencies(texts.store, folder, vocab_size=texts.vocab_size)

    def values(self, _texts: SignalTexts, folder: Path) -> Iterator[NDArray[np.float32]]:
        """The weights f32[V], from the counts that `fit` left in `folder`."""
        yield open_idf(folder).numpy()
