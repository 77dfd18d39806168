"""Rebuild the whole text from the bottleneck alone: the decoder sees only [MASK]s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from drkit.core.types import BuildContext, DecoderInput, MaskedView, TokenBatch, TokenStates
from drkit.decoders.layers import sizes_of
from drkit.decoders.mlm import MlmDecoder
from drkit.decoders.specs import MlmDecoderConfig
from drkit.encoders.heads import Heads

if TYPE_CHECKING:
    from drkit.encoders.masked_lm import MaskedLmEncoder


class AutoencoderDecoder(nn.Module):
    """An `MlmDecoder` on `[h', e([MASK]) + p_1, e([MASK]) + p_2, ..]`; every maskable token of the text is a target.

    [SEP] becomes a [MASK] too, so the decoder knows only the length and the vector of the text. It does not read the
    masker's view for the decoder.

    Source: SimLM (Wang et al. 2023), section 5.1, "AutoEncoder"; there the encoder reads the clean text.
    """

    needs_layers: tuple[int, ...] = ()

    def __init__(self, config: MlmDecoderConfig, context: BuildContext) -> None:
        super().__init__()
        self.mask_id = sizes_of(context).mask_id
        self.decoder = MlmDecoder(config, context)

    def rows(self, length: int) -> int:  # noqa: ARG002
        """Return 0: this decoder does not read the masker's view."""
        return 0

    def init_from(self, encoder: MaskedLmEncoder) -> None:
        """Copy layers of the encoder; see `MlmDecoder.init_from`."""
        self.decoder.init_from(encoder)

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, TokenStates]:
        """Return token_states: the last layer's states f[N,D] at the N maskable tokens of `inputs.tokens`."""
        masks = all_masked(inputs.tokens, self.mask_id)
        return self.decoder(DecoderInput(inputs.encoded, inputs.tokens, masks), heads)  # type: ignore[no-any-return]


def all_masked(tokens: TokenBatch, mask_id: int) -> MaskedView:
    """Return the view in which every token is [MASK], and every maskable one a target."""
    ids = torch.where(tokens.attention, mask_id, tokens.ids)
    labels = torch.where(tokens.maskable, tokens.ids, -100)
    return MaskedView(ids=ids, labels=labels, attention=tokens.attention)
