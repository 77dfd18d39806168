"""From examples to the tensors of a pre-training step: texts, contexts, partners, masked anew in every epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from attrs import evolve, field, frozen

from drkit.core.draws import Draws
from drkit.core.protocols import Masker
from drkit.core.types import TokenBatch
from drkit.data.contexts import Contexts, stacked
from drkit.data.signals import SignalValues
from drkit.data.store import TokenStore
from drkit.maskers.views import keep_targets
from drkit.runs.pretraining.autoencoder import collated
from drkit.runs.training.batches import Example

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

# Lengths are padded to multiples of this: few shapes, so the allocator can reuse its blocks.
BUCKET = 16
# A partner's draws are another example's: keys are places in a store, and no store is this long.
PARTNER = 1 << 40


@frozen(eq=False)
class MaskingCollator:
    """(epoch, example) pairs -> the tensors of `AutoEncoder.forward`, masked anew in every epoch.

    rows: how many visibility rows the decoder wants for a given length. signals: what parts read of the store's tokens
    and texts, by name. contexts: where a text's context comes from.
    paired: each text is followed by its partner (row B + b belongs to row b): its context, or else the text itself,
    masked by draws of its own.
    """

    store: TokenStore
    masker: Masker
    rows: Callable[[int], int]
    seed: int
    signals: Mapping[str, SignalValues] = field(factory=dict)
    contexts: Contexts | None = None
    paired: bool = False

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """All examples of a batch belong to one epoch."""
        epoch = examples[0][0]
        places = np.array([example for _, example in examples], dtype=np.int64)
        tokens = self._tokens(places, epoch)
        tensors = self._masked(tokens, Draws(self.seed, epoch, tokens.keys.numpy()))
        if self.paired:
            rows = torch.arange(2 * len(places))
            tensors["partners"] = rows.roll(len(places))
        return tensors

    def _tokens(self, places: NDArray[np.int64], epoch: int) -> TokenBatch:
        tokens = self.store.batch(places, pad_to=BUCKET, signals=self.signals)
        context = None
        if self.contexts is not None:
            context = self.contexts.batch(places, epoch, self.seed, pad_to=BUCKET)
        if not self.paired:
            return evolve(tokens, context=context)
        partner = evolve(tokens if context is None else context, keys=tokens.keys + PARTNER)
        both = stacked(tokens, partner, self.store.pad_id)
        return both if context is None else evolve(both, context=stacked(partner, tokens, self.store.pad_id))

    def _masked(self, tokens: TokenBatch, rng: Draws) -> dict[str, Tensor]:
        length = (tokens.context or tokens).ids.shape[1]
        rows = self.rows(length)
        views = self.masker(tokens, rng, rows=rows)
        if 0 < rows < length:
            views = evolve(views, decoder=keep_targets(views.decoder, self.rows, rng))
        return collated(tokens, views)
