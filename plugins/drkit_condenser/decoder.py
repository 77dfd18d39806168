"""Rebuild the encoder's own masked tokens from its vector and the token states of one of its lower layers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from drkit.decoders import PostLnLayer, init_weights, sizes_of, states_at, uncomputed_states, with_bottleneck
from drkit.plugin import BuildContext, DecoderInput, DrkitError, LmHeads, MaskedView, TokenStates, seeded
from drkit_condenser import CondenserConfig


class CondenserDecoder(nn.Module):
    """n transformer layers on `[h, hidden_M(x_1), ..]`: the upper layers reach the targets only through h.

    It reads the encoder's text and view, never the decoder's: its targets are the encoder's masked positions, and its
    attention is the encoder's. M is `skip_from`, by default half of the encoder's layers, rounded down: 6 of 12, and 0
    (the embeddings) of a single layer.

    Source: Condenser (Gao and Callan 2021), section 3; Query-as-context section 2.3, equation 6.
    """

    def __init__(self, config: CondenserConfig, context: BuildContext) -> None:
        super().__init__()
        sizes = sizes_of(context)
        layer = sizes.layers // 2 if config.skip_from is None else config.skip_from
        if layer > sizes.layers:
            raise DrkitError(
                f"decoder.skip_from = {layer}, but this encoder has {sizes.layers} layers; use 0 (embeddings) to "
                f"{sizes.layers}, or leave it out for {sizes.layers // 2}, half of them"
            )
        self.needs_layers: tuple[int, ...] = (layer,)
        with seeded(context.seed, "decoder"):
            self.layers = nn.ModuleList(PostLnLayer(sizes) for _ in range(config.layers))
            init_weights(self, sizes.initializer_range)

    def targets(self, inputs: DecoderInput) -> Mapping[str, TokenStates]:
        """Return token_states f[N,0] of the encoder's targets."""
        return {"token_states": uncomputed_states(_encoder_view(inputs, ()).labels)}

    def forward(self, inputs: DecoderInput, heads: LmHeads) -> Mapping[str, TokenStates]:
        """Return token_states: the last layer's states f[N,D] at the N targets of the encoder's view.

        Raises DrkitError if the encoder's view or the states of layer M are missing.
        """
        view = _encoder_view(inputs, self.needs_layers)
        targets, visible = view.labels != -100, view.attention[:, None]
        states = with_bottleneck(inputs.encoded.bottleneck, inputs.encoded.layers[0])
        found = states_at(self.layers, states, visible, targets)
        return {"token_states": TokenStates(states=found, labels=view.labels[targets], heads=heads)}


def _encoder_view(inputs: DecoderInput, layers: tuple[int, ...]) -> MaskedView:
    if inputs.encoder_view is None:
        raise DrkitError(
            "the decoder 'condenser' rebuilds the tokens masked for the encoder; pass DecoderInput(.., encoder_view=..)"
        )
    if len(inputs.encoded.layers) != len(layers):
        raise DrkitError(
            f"the decoder 'condenser' reads the encoder's layer {layers[0]}; call encoder.encode(ids, attention, "
            f"decoder.needs_layers)"
        )
    return inputs.encoder_view
