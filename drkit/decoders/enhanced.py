"""Rebuild every token from the bottleneck and a random part of the others, one pattern a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drkit.core.types import TokenStates
from drkit.decoders.layers import Bottleneck, PostLnLayer, init_weights, sizes_of, with_bottleneck
from drkit.encoders.seeding import seeded
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drkit.core.types import BuildContext, DecoderInput, MaskedView
    from drkit.decoders.config import EnhancedConfig
    from drkit.encoders.heads import Heads


class EnhancedDecoder(nn.Module):
    """One transformer layer on two streams; every maskable token is a target.

    Queries are h + p_i (position embeddings alone, no LayerNorm); keys and values are `[h, e(x_1) + p_1, ..]` of the
    clean text. Row i sees h, what the masker's row i lets it see, never itself and never padding.

    Source: RetroMAE (Xiao et al. 2022), section 3.3, equations 4 to 6.
    """

    needs_layers: tuple[int, ...] = ()

    def __init__(self, config: EnhancedConfig, context: BuildContext) -> None:
        super().__init__()
        self.config, sizes = config, sizes_of(context)
        with seeded(context.seed, "decoder"):
            self.bottleneck = Bottleneck(sizes.hidden, config.projection)
            self.layer = PostLnLayer(sizes)
            init_weights(self, sizes.initializer_range)

    def rows(self, length: int) -> int:
        """A visibility row for each position."""
        return length

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, TokenStates]:
        """token_states: the layer's states f[N,D] at the N targets of the view (never position 0).

        Raises DrkitError where the view has no visibility pattern bool[B,L,L].
        """
        view, length = inputs.view, inputs.view.ids.shape[1]
        h = self.bottleneck(inputs.encoded.bottleneck)
        context = with_bottleneck(h, heads.embed(view.ids))
        queries = h[:, None] + heads.positions(length)
        targets = view.labels != -100
        targets[:, 0] = False
        states = self.layer(queries, context, row_visibility(view), at=targets)
        return {"token_states": TokenStates(states=states, labels=view.labels[targets], heads=heads)}


def row_visibility(view: MaskedView) -> Tensor:
    """bool[B,L,L]: the masker's pattern with the decoder's own rules: h always, itself never, padding never.

    Row 0 sees h too: it is no target, and a row that sees nothing would send NaN into the gradient.
    """
    batch, length = view.ids.shape
    if view.visible is None:
        raise DrkitError(
            "the decoder 'enhanced' needs a visibility pattern per row: call the masker with rows=decoder.rows(L), "
            "and take a masker that provides 'rows' (see `drkit list masker`)"
        )
    if view.visible.shape != (batch, length, length):
        raise DrkitError(
            f"the decoder 'enhanced' needs visible bool[B,L,L] = {(batch, length, length)}, "
            f"got {tuple(view.visible.shape)}: call the masker with rows=decoder.rows(L)"
        )
    others = ~torch.eye(length, dtype=torch.bool, device=view.ids.device)
    visible = view.visible & view.attention[:, None] & others
    visible[:, :, 0] = True
    return visible
