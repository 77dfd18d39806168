"""The signal `importance`: PMI of every token with the n-grams around it, from n-gram counts of the corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drkit.data.importance import token_values
from drkit.data.ngrams import NgramCounts, count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from drkit.core.protocols import SignalTexts
    from drkit.signals.specs import ImportanceConfig

COUNTS = "counts"


class ImportanceSignal:
    """f32 a token: its averaged PMI with the n-grams around it (`drkit.data.importance`).

    Source: CDMAE section 3.2 (Li et al. 2023).
    """

    def __init__(self, config: ImportanceConfig, _context: object = None) -> None:
        self.config = config

    def fit(self, texts: SignalTexts, folder: Path) -> Mapping[str, Any]:
        """Count the n-grams of the corpus; returns what was counted."""
        counts = count(texts.store, folder / COUNTS, window=self.config.window, min_count=self.config.min_count)
        return {"ngrams": counts.describe()}

    def values(self, texts: SignalTexts, folder: Path) -> Iterator[NDArray[np.float32]]:
        """The importance of every content token, by the counts that `fit` left in `folder`."""
        return token_values(texts.store, NgramCounts(folder / COUNTS), pmi=self.config.pmi)
