"""From hidden positions to ids and labels: the one place where tokens are corrupted, for every masker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from drkit.core.types import MaskedView, Views
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from drkit.core.draws import Draws
    from drkit.core.types import BuildContext, TokenBatch

NO_TARGET = -100
SHARES = (0.8, 0.1, 0.1)  # BERT's: made [MASK], made random, kept


@frozen(eq=False)
class Corruption:
    """How hidden tokens are replaced: the mask id, the ids a random token is drawn from i64[V'], and the shares."""

    mask_id: int
    ordinary: NDArray[np.int64]
    shares: tuple[float, float, float]

    @classmethod
    def of(cls, context: BuildContext, shares: tuple[float, float, float]) -> Corruption:
        """The corruption for a context's vocabulary: special tokens are never drawn.

        Raises DrkitError where the context has no backbone.
        """
        backbone = context.backbone
        if backbone is None:
            raise DrkitError("a masker needs the mask id and vocabulary: build it with context_from(model, tokenizer)")
        # A model's embedding table may be longer than its vocabulary (padded to a round number).
        size = backbone.vocab if context.tokenizer is None else min(backbone.vocab, len(context.tokenizer))
        special = {backbone.mask_id, backbone.pad_id, *backbone.special_ids}
        ordinary = np.setdiff1d(np.arange(size), np.fromiter(special, dtype=np.int64))
        return cls(mask_id=backbone.mask_id, ordinary=ordinary, shares=shares)


def masked_view(tokens: TokenBatch, hidden: NDArray[np.bool_], rng: Draws, corruption: Corruption) -> MaskedView:
    """The view with hidden bool[B,L] replaced: each token made [MASK], made random, or kept, by its own draw."""
    coin = torch.from_numpy(rng.uniform(hidden.shape[1]))
    drawn = torch.from_numpy(corruption.ordinary[rng.integers(len(corruption.ordinary), hidden.shape[1])])
    chosen = torch.from_numpy(hidden)
    to_mask, to_random, _ = corruption.shares
    ids = torch.where(chosen & (coin < to_mask), corruption.mask_id, tokens.ids)
    ids = torch.where(chosen & (coin >= to_mask) & (coin < to_mask + to_random), drawn, ids)
    labels = torch.where(chosen, tokens.ids, NO_TARGET)
    return MaskedView(ids=ids, labels=labels, attention=tokens.attention)


def keep_targets(view: MaskedView, rows: Callable[[int], int], rng: Draws) -> MaskedView:
    """The view with fewer targets, drawn at random: `rows(n)` of a text's n targets; other labels become -100.

    rows: a decoder's own, so that a text gets the same targets whatever it is padded to.
    """
    targets = (view.labels != NO_TARGET).numpy()
    counts, which = np.unique(targets.sum(1), return_inverse=True)
    count = np.array([rows(int(n)) for n in counts])[which][:, None]
    keys = np.where(targets, rng.uniform(targets.shape[1]), np.float32(2))
    ranks = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1)
    kept = torch.from_numpy(targets & (ranks < count))
    return evolve(view, labels=torch.where(kept, view.labels, NO_TARGET))


def clean_view(tokens: TokenBatch, visible: Tensor) -> MaskedView:
    """The view of a decoder that wants rows: clean ids, every maskable token a target, visible bool[B,R,L]."""
    labels = torch.where(tokens.maskable, tokens.ids, NO_TARGET)
    return MaskedView(ids=tokens.ids, labels=labels, attention=tokens.attention, visible=visible)


def views_of(
    tokens: TokenBatch, from_encoder: Tensor, from_decoder: Tensor, rng: Draws, context: BuildContext, *, rows: int = 0
) -> Views:
    """Both views from what is hidden of each side: all that a masker of your own has to call.

    from_encoder bool[B,L]; from_decoder bool[B,L], or bool[B,rows,L] where each row hides its own. Hidden tokens are
    corrupted in BERT's shares; special tokens and padding are left alone whatever is asked.
    """
    corruption = Corruption.of(context, SHARES)
    encoder = masked_view(tokens, (from_encoder & tokens.maskable).numpy(), rng, corruption)
    if rows:
        hidden = from_decoder if from_decoder.ndim == 3 else from_decoder[:, None].expand(-1, rows, -1)
        decoder = clean_view(tokens, ~(hidden & tokens.maskable[:, None]) & tokens.attention[:, None])
    else:
        decoder = masked_view(tokens, (from_decoder & tokens.maskable).numpy(), rng, corruption)
    return Views(encoder=encoder, decoder=decoder, context=tokens)
