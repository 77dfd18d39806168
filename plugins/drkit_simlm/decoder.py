"""Detect which tokens a generator replaced, or rebuild every token, from the bottleneck alone or with a view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drkit.decoders import MlmDecoder, MlmDecoderConfig, init_weights, sizes_of, uncomputed_states
from drkit.maskers import replaced_targets
from drkit.plugin import BackboneInfo, BuildContext, DecoderInput, LmHeads, MaskedView, TokenBatch, TokenStates, seeded

if TYPE_CHECKING:
    from drkit.encoders import MaskedLmEncoder


class ReplacedTokenDetectionDecoder(nn.Module):
    """An `MlmDecoder` with one score per token instead of one per word of the vocabulary: was this token replaced?

    Source: SimLM (Wang et al. 2023), section 5.1, "Enc-Dec RTD"; the head is ELECTRA's (Clark et al. 2020).
    """

    def __init__(self, config: MlmDecoderConfig, context: BuildContext) -> None:
        super().__init__()
        self.decoder = MlmDecoder(config, context)
        with seeded(context.seed, "replaced-token detection of the decoder"):
            self.head = ReplacedHead(sizes_of(context))

    def init_from(self, encoder: MaskedLmEncoder) -> None:
        """Copy layers of the encoder; see `MlmDecoder.init_from`."""
        self.decoder.init_from(encoder)

    def targets(self, inputs: DecoderInput) -> Mapping[str, Tensor]:
        """Return a score without meaning for each target of the view, and replaced bool[N] as far as the view says."""
        replaced = replaced_targets(inputs.view, inputs.tokens)
        return {"replaced_logits": torch.zeros(len(replaced)), "replaced": replaced}

    def forward(self, inputs: DecoderInput, heads: LmHeads) -> Mapping[str, Tensor]:
        """Return replaced_logits f[N] and replaced bool[N], at the N targets of the view: all maskable tokens."""
        states = self.decoder(inputs, heads)["token_states"].states
        return {"replaced_logits": self.head(states), "replaced": replaced_targets(inputs.view, inputs.tokens)}


class ReplacedHead(nn.Module):
    """Linear, activation, Linear to one score: above 0 predicts that the token was replaced."""

    def __init__(self, sizes: BackboneInfo) -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        self.dense = nn.Linear(sizes.hidden, sizes.hidden)
        self.activation: nn.Module = ACT2FN[sizes.activation]
        self.score = nn.Linear(sizes.hidden, 1)
        init_weights(self, sizes.initializer_range)

    def forward(self, states: Tensor) -> Tensor:
        """Return one score per state: f[...,D] -> f[...]."""
        scores: Tensor = self.score(self.activation(self.dense(states)))
        return scores.squeeze(-1)


class AutoencoderDecoder(nn.Module):
    """An `MlmDecoder` on `[h', e([MASK]) + p_1, e([MASK]) + p_2, ..]`; every maskable token of the text is a target.

    [SEP] becomes a [MASK] too, so the decoder knows only the length and the vector of the text. It does not read the
    masker's view for the decoder.

    Source: SimLM (Wang et al. 2023), section 5.1, "AutoEncoder"; there the encoder reads the clean text.
    """

    def __init__(self, config: MlmDecoderConfig, context: BuildContext) -> None:
        super().__init__()
        self.mask_id = sizes_of(context).require_mask_id()
        self.decoder = MlmDecoder(config, context)

    def init_from(self, encoder: MaskedLmEncoder) -> None:
        """Copy layers of the encoder; see `MlmDecoder.init_from`."""
        self.decoder.init_from(encoder)

    def targets(self, inputs: DecoderInput) -> Mapping[str, TokenStates]:
        """Return token_states f[N,0] of all maskable tokens."""
        return {"token_states": uncomputed_states(all_masked(inputs.tokens, self.mask_id).labels)}

    def forward(self, inputs: DecoderInput, heads: LmHeads) -> Mapping[str, TokenStates]:
        """Return token_states: the last layer's states f[N,D] at the N maskable tokens of `inputs.tokens`."""
        masks = all_masked(inputs.tokens, self.mask_id)
        found: Mapping[str, TokenStates] = self.decoder(DecoderInput(inputs.encoded, inputs.tokens, masks), heads)
        return found


def all_masked(tokens: TokenBatch, mask_id: int) -> MaskedView:
    """Return the view in which every token is [MASK], and every maskable one a target."""
    ids = torch.where(tokens.attention, mask_id, tokens.ids)
    labels = torch.where(tokens.maskable, tokens.ids, -100)
    return MaskedView(ids=ids, labels=labels, attention=tokens.attention)
