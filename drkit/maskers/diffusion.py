"""Hide another share of every text, drawn anew each time, as masked diffusion does."""

from __future__ import annotations

import numpy as np
import torch
from attrs import evolve
from numpy.typing import NDArray

from drkit.core.draws import Draws
from drkit.core.types import BuildContext, MaskedView, TokenBatch
from drkit.maskers.specs import DiffusionConfig
from drkit.maskers.views import Corruption, clean_view, hidden_tokens, masked_view

_ALL_MASKS = (1.0, 0.0, 0.0)


class DiffusionMasker:
    """Draws a ratio t for each text, uniformly from `least` to `most`, and replaces tokens with the mask token.

    With `hides = "coins"` each token is hidden with probability t, so a text may stay whole; with `count`, exactly
    ceil(t n) of its n tokens are, and t is that share. The view has the ratios, by which the loss `masked-diffusion`
    is weighted. What an earlier view hides (`nested`) is hidden, too. With `rows` every row draws its own tokens, in
    the ratio of its text.

    Source: LLaDA (Nie et al. 2025), pre-training, and its likelihood for `count`; MDLM (Sahoo et al. 2024), with the
    linear schedule.
    """

    def __init__(self, config: DiffusionConfig, context: BuildContext) -> None:
        self.config = config
        self.corruption = Corruption.of(context, _ALL_MASKS)

    def __call__(self, tokens: TokenBatch, rng: Draws, rows: int = 0, nested: MaskedView | None = None) -> MaskedView:
        """Return a view of a batch with `ratios` f32[B]; `rows` > 0: a visibility pattern bool[B,rows,L]."""
        maskable = tokens.maskable.numpy()
        lengths = maskable.sum(1)
        ratios = self.config.least + (self.config.most - self.config.least) * rng.uniform()
        keys = np.where(maskable[:, None], rng.uniform(max(1, rows), maskable.shape[1]), np.float32(2))
        if nested is not None:
            keys = np.where((hidden_tokens(nested) & tokens.maskable).numpy()[:, None], np.float32(-1), keys)
        if self.config.hides == "count":
            counts = np.maximum(1, np.ceil(ratios * lengths))
            hidden = _ranks(keys) < counts[:, None, None]
            ratios = counts / np.maximum(1, lengths)
        else:
            hidden = keys < ratios[:, None, None]
        hidden = (hidden | (keys < 0)) & maskable[:, None]
        if rows:
            view = clean_view(tokens, torch.from_numpy(~hidden) & tokens.attention[:, None])
        else:
            view = masked_view(tokens, hidden[:, 0], rng, self.corruption)
        return evolve(view, ratios=torch.from_numpy(ratios.astype(np.float32)))


def _ranks(keys: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the rank of each key along the last axis, from 0."""
    return np.argsort(np.argsort(keys, axis=-1, kind="stable"), axis=-1)
