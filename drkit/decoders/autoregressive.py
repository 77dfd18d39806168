"""Tell every token from the bottleneck and the few tokens before it: a weak decoder leans on the vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from drkit.core.types import TokenStates
from drkit.decoders.causal import causal_visibility, next_tokens
from drkit.decoders.layers import PostLnLayer, init_weights, sizes_of, with_bottleneck
from drkit.encoders.seeding import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drkit.core.types import BuildContext, DecoderInput
    from drkit.decoders.config import AutoregressiveConfig
    from drkit.encoders.heads import Heads


class AutoregressiveDecoder(nn.Module):
    """n transformer layers on `[h, e(x_1) + p_1, ..]` of the clean text, left to right; each tells the next token.

    In each layer a position sees h and the last `window` tokens, itself among them: with 2, x_t is told from h and
    what x_{t-1} and x_{t-2} hold. Through n layers a token reaches n * (window - 1) positions further.

    Source: SEED (Lu et al. 2021): three layers whose attention reaches two tokens back.
    """

    needs_layers: tuple[int, ...] = ()

    def __init__(self, config: AutoregressiveConfig, context: BuildContext) -> None:
        super().__init__()
        self.config, sizes = config, sizes_of(context)
        with seeded(context.seed, "decoder"):
            self.layers = nn.ModuleList(PostLnLayer(sizes) for _ in range(config.layers))
            init_weights(self, sizes.initializer_range)

    def rows(self, length: int) -> int:  # noqa: ARG002
        """It reads the clean text, and no view of it."""
        return 0

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, TokenStates]:
        """token_states: the last layer's states f[N,D] at the N positions before a target, and that target."""
        tokens = inputs.tokens
        labels = next_tokens(tokens, self.config.end_token)
        targets, visible = labels != -100, causal_visibility(tokens.attention, self.config.window)
        states = with_bottleneck(inputs.encoded.bottleneck, heads.embed(tokens.ids))
        for layer in self.layers[:-1]:
            states = layer(states, states, visible)
        found = self.layers[-1](states, states, visible, at=targets)
        return {"token_states": TokenStates(states=found, labels=labels[targets], heads=heads)}
