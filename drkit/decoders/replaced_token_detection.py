"""Detect which tokens of the text a generator replaced, from the bottleneck and the other tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from drkit.core.types import BackboneInfo, BuildContext, DecoderInput, MaskedView, TokenBatch
from drkit.decoders.layers import init_weights, sizes_of
from drkit.decoders.mlm import MlmDecoder
from drkit.decoders.specs import MlmDecoderConfig
from drkit.encoders.heads import Heads, seeded

if TYPE_CHECKING:
    from drkit.encoders.masked_lm import MaskedLmEncoder


class ReplacedTokenDetectionDecoder(nn.Module):
    """An `MlmDecoder` with one score per token instead of one per word of the vocabulary: was this token replaced?

    Source: SimLM (Wang et al. 2023), section 5.1, "Enc-Dec RTD"; the head is ELECTRA's (Clark et al. 2020).
    """

    needs_layers: tuple[int, ...] = ()

    def __init__(self, config: MlmDecoderConfig, context: BuildContext) -> None:
        super().__init__()
        self.decoder = MlmDecoder(config, context)
        with seeded(context.seed, "replaced-token detection of the decoder"):
            self.head = ReplacedHead(sizes_of(context))

    def rows(self, length: int) -> int:  # noqa: ARG002
        """Return 0: this decoder reads a plain view, not a visibility pattern."""
        return 0

    def init_from(self, encoder: MaskedLmEncoder) -> None:
        """Copy layers of the encoder; see `MlmDecoder.init_from`."""
        self.decoder.init_from(encoder)

    def forward(self, inputs: DecoderInput, heads: Heads) -> Mapping[str, Tensor]:
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


def replaced_targets(view: MaskedView, tokens: TokenBatch) -> Tensor:
    """Return at which of its N targets a view differs from the text, bool[N]; a sample may equal the original."""
    return (view.ids != tokens.ids)[view.labels != -100]
