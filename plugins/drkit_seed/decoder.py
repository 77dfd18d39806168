"""Predict the next token from the vector and a small window of the tokens before it (SEED, Query-as-context)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drkit.decoders import PostLnLayer, init_weights, sizes_of, states_at, uncomputed_states, with_bottleneck
from drkit.plugin import BackboneInfo, BuildContext, DecoderInput, LmHeads, TokenBatch, TokenStates, seeded
from drkit_seed import AutoregressiveBlockConfig, AutoregressiveConfig


def next_tokens(tokens: TokenBatch, end_token: bool) -> Tensor:
    """Return at each position the next token if that is a target, otherwise -100: i64[B,L].

    Targets are the maskable tokens of the clean text and, with `end_token`, its last token ([SEP]).
    """
    targets = tokens.maskable
    if end_token:
        lengths = tokens.attention.sum(1, keepdim=True)
        last = torch.arange(tokens.ids.shape[1], device=lengths.device) == lengths - 1
        targets = targets | last
    following = tokens.ids.masked_fill(~targets, -100).roll(-1, 1)
    following[:, -1] = -100
    return following


def causal_visibility(attention: Tensor, window: int) -> Tensor:
    """Return what each position sees, bool[B,L,L]: position 0 (the bottleneck) and the `window` positions up to it.

    attention bool[B,L]; window 0: all positions up to it.

    >>> causal_visibility(torch.ones(1, 5, dtype=torch.bool), 2)[0].int().tolist()
    [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]
    """
    positions = torch.arange(attention.shape[1], device=attention.device)
    back = positions[:, None] - positions
    sees = (back >= 0) & (back < window) if window else back >= 0
    # Rows of padding see the bottleneck too: a row without any visible position would put NaN into the gradient.
    return (sees & attention[:, None]) | (positions == 0)


def next_token_task(
    inputs: DecoderInput, heads: LmHeads, config: AutoregressiveConfig | AutoregressiveBlockConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Return states f[B,L,D], what each position sees, bool[B,L,L], and the label of each position, i64[B,L]."""
    tokens = inputs.tokens
    states = with_bottleneck(inputs.encoded.bottleneck, heads.embed(tokens.ids))
    return states, causal_visibility(tokens.attention, config.window), next_tokens(tokens, config.end_token)


class AutoregressiveDecoder(nn.Module):
    """n transformer layers on `[h, e(x_1) + p_1, ..]` of the clean text; each position predicts the next token.

    In each layer a position sees h and the last `window` tokens, itself included: with 2, x_t is predicted from h and
    the states of x_{t-1} and x_{t-2}. Through n layers a token reaches n * (window - 1) positions further.

    Source: SEED (Lu et al. 2021): three layers whose attention reaches two tokens back.
    """

    def __init__(self, config: AutoregressiveConfig, context: BuildContext) -> None:
        super().__init__()
        self.config, sizes = config, sizes_of(context)
        with seeded(context.seed, "decoder"):
            self.layers = nn.ModuleList(PostLnLayer(sizes) for _ in range(config.layers))
            init_weights(self, sizes.initializer_range)

    def targets(self, inputs: DecoderInput) -> Mapping[str, TokenStates]:
        """Return token_states f[N,0] of the tokens to predict."""
        return {"token_states": uncomputed_states(next_tokens(inputs.tokens, self.config.end_token))}

    def forward(self, inputs: DecoderInput, heads: LmHeads) -> Mapping[str, TokenStates]:
        """Return token_states: the last layer's states f[N,D] at the N positions before a target, and that target."""
        states, visible, labels = next_token_task(inputs, heads, self.config)
        targets = labels != -100
        found = states_at(self.layers, states, visible, targets)
        return {"token_states": TokenStates(states=found, labels=labels[targets], heads=heads)}


# How much wider GPT-2's feed-forward layer is than its states, whatever the encoder's.
WIDENING = 4


class AutoregressiveBlockDecoder(nn.Module):
    """One GPT-2 block and a LayerNorm on `[h, e(x_1) + p_1, ..]` of the clean text; each position predicts the next.

    A position sees h and the last `window` tokens, itself included: x_t is predicted from h and exactly the `window`
    tokens before it. The text's last token is a target, as in the authors' code (`end_token`).

    Source: the code of Query-as-context (Wu et al. 2023), which the paper does not mention.
    """

    def __init__(self, config: AutoregressiveBlockConfig, context: BuildContext) -> None:
        super().__init__()
        self.config, sizes = config, sizes_of(context)
        with seeded(context.seed, "decoder"):
            self.block = PreLnBlock(sizes)
            self.norm = nn.LayerNorm(sizes.hidden, eps=sizes.layer_norm_eps)
            init_weights(self, sizes.initializer_range)

    def targets(self, inputs: DecoderInput) -> Mapping[str, TokenStates]:
        """Return token_states f[N,0] of the tokens to predict."""
        return {"token_states": uncomputed_states(next_tokens(inputs.tokens, self.config.end_token))}

    def forward(self, inputs: DecoderInput, heads: LmHeads) -> Mapping[str, TokenStates]:
        """Return token_states: the states f[N,D] at the N positions before a target, and that target."""
        states, visible, labels = next_token_task(inputs, heads, self.config)
        targets = labels != -100
        found = self.norm(self.block(states, visible, targets))
        return {"token_states": TokenStates(states=found, labels=labels[targets], heads=heads)}


class PreLnBlock(nn.Module):
    """A GPT-2 block: LayerNorm, attention, add, LayerNorm, feed-forward, add; heads, activation as the encoder's."""

    def __init__(self, sizes: BackboneInfo) -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        self.heads, self.dropout = sizes.heads, sizes.dropout
        self.attention_norm = nn.LayerNorm(sizes.hidden, eps=sizes.layer_norm_eps)
        self.attention = nn.Linear(sizes.hidden, 3 * sizes.hidden)
        self.attention_output = nn.Linear(sizes.hidden, sizes.hidden)
        self.intermediate_norm = nn.LayerNorm(sizes.hidden, eps=sizes.layer_norm_eps)
        self.intermediate = nn.Linear(sizes.hidden, WIDENING * sizes.hidden)
        self.activation: nn.Module = ACT2FN[sizes.activation]
        self.output = nn.Linear(WIDENING * sizes.hidden, sizes.hidden)

    def forward(self, states: Tensor, visible: Tensor, at: Tensor) -> Tensor:
        """Return f[N,D], at the N positions of at bool[B,L]; states f[B,L,D], visible bool[B,L,L]."""
        attended = self._attend(self.attention_norm(states), visible)[at]
        summed = states[at] + self._drop(self.attention_output(attended))
        widened = self.activation(self.intermediate(self.intermediate_norm(summed)))
        return summed + self._drop(self.output(widened))

    def _attend(self, normed: Tensor, visible: Tensor) -> Tensor:
        batch, length, _ = normed.shape
        made = self.attention(normed).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        query, key, value = made.unbind()
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible[:, None], dropout_p=drop)
        return mixed.transpose(1, 2).flatten(2)

    def _drop(self, states: Tensor) -> Tensor:
        return F.dropout(states, self.dropout, self.training)
