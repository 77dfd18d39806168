"""Rebuild masked tokens from the bottleneck and the rest of the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from drkit.core.types import BuildContext, DecoderInput, TokenStates
from drkit.decoders.layers import (
    Bottleneck,
    PostLnLayer,
    init_weights,
    sizes_of,
    states_at,
    uncomputed_states,
    with_bottleneck,
)
from drkit.decoders.specs import MlmDecoderConfig
from drkit.encoders.heads import Heads, seeded
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.encoders.masked_lm import MaskedLmEncoder


class MlmDecoder(nn.Module):
    """n transformer layers on `[h', e(x_1) + p_1, ..]` of the decoder's view; targets are the view's labels.

    Source: CDMAE section 3.1 (with `projection`), SimLM section 3.1, CoT-MAE; RetroMAE's ablation with one layer.
    """

    def __init__(self, config: MlmDecoderConfig, context: BuildContext) -> None:
        super().__init__()
        self.config, sizes = config, sizes_of(context)
        with seeded(context.seed, "decoder"):
            self.bottleneck = Bottleneck(sizes.hidden, config.projection)
            self.layers = nn.ModuleList(PostLnLayer(sizes) for _ in range(config.layers))
            init_weights(self, sizes.initializer_range)

    def init_from(self, encoder: MaskedLmEncoder) -> None:
        """Copy the encoder's last n layers if `init = "encoder-tail"`; otherwise do nothing.

        Raises DrkitError if the encoder has fewer layers.
        """
        if self.config.init != "encoder-tail":
            return
        if len(self.layers) > len(encoder.layers):
            raise DrkitError(
                f"init = 'encoder-tail' with {len(self.layers)} decoder layers, but the encoder has only "
                f"{len(encoder.layers)}; lower decoder.layers or set init = 'random'"
            )
        for mine, theirs in zip(self.layers, encoder.layers[-len(self.layers) :], strict=True):
            assert isinstance(mine, PostLnLayer)
            mine.copy_from(theirs, encoder.architecture.layer)

    def targets(self, inputs: DecoderInput) -> Mapping[str, TokenStates]:
        """Return token_states f[N,0] of the view's targets."""
        return {"token_states": uncomputed_states(inputs.view.labels)}

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, TokenStates]:
        """Return token_states: the last layer's states f[N,D] at the N targets of the view."""
        view = inputs.view
        targets, visible = view.labels != -100, view.attention[:, None]
        states = with_bottleneck(self.bottleneck(inputs.encoded.bottleneck), heads.embed(view.ids))
        found = states_at(self.layers, states, visible, targets)
        return {"token_states": TokenStates(states=found, labels=view.labels[targets], heads=heads)}
