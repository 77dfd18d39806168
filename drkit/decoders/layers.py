"""The transformer layer of the decoders.

Unlike the layers of transformers it has two streams: queries attend to a separate stream of keys and values, and the
residual is the queries'. After the attention every position is computed on its own, so only targets are computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drkit.core.protocols import ReadsLayers, ReadsRows
from drkit.core.types import BackboneInfo, BuildContext, TokenStates
from drkit.encoders.architectures import LayerNames
from drkit.errors import DrkitError


class PostLnLayer(nn.Module):
    """A BERT layer (attention, add, LayerNorm, feed-forward, add, LayerNorm) on two streams; sizes as the encoder's."""

    def __init__(self, sizes: BackboneInfo) -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        self.heads, self.dropout = sizes.heads, sizes.dropout
        self.query = nn.Linear(sizes.hidden, sizes.hidden)
        self.key = nn.Linear(sizes.hidden, sizes.hidden)
        self.value = nn.Linear(sizes.hidden, sizes.hidden)
        self.attention_output = nn.Linear(sizes.hidden, sizes.hidden)
        self.attention_norm = nn.LayerNorm(sizes.hidden, eps=sizes.layer_norm_eps)
        self.intermediate = nn.Linear(sizes.hidden, sizes.intermediate)
        self.activation: nn.Module = ACT2FN[sizes.activation]
        self.output = nn.Linear(sizes.intermediate, sizes.hidden)
        self.output_norm = nn.LayerNorm(sizes.hidden, eps=sizes.layer_norm_eps)

    def forward(self, queries: Tensor, context: Tensor, visible: Tensor, at: Tensor | None = None) -> Tensor:
        """Return the states f[B,Q,D], or f[N,D] at the N positions of `at`.

        queries f[B,Q,D]; context f[B,L,D], keys and values; visible bool[B,Q,L] or bool[B,1,L]: what each query sees,
        at least one position in every row; at bool[B,Q]: the queries to return, None: all.
        """
        attended = self._attend(queries, context, visible)
        if at is not None:
            attended, queries = attended[at], queries[at]
        states = self.attention_norm(queries + self._drop(self.attention_output(attended)))
        widened = self.activation(self.intermediate(states))
        normed: Tensor = self.output_norm(states + self._drop(self.output(widened)))
        return normed

    def _attend(self, queries: Tensor, context: Tensor, visible: Tensor) -> Tensor:
        drop = self.dropout if self.training else 0.0
        query, key, value = (
            self._split(made) for made in (self.query(queries), self.key(context), self.value(context))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=visible[:, None], dropout_p=drop)
        return mixed.transpose(1, 2).flatten(2)

    def _split(self, states: Tensor) -> Tensor:
        batch, length, width = states.shape
        return states.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def _drop(self, states: Tensor) -> Tensor:
        return F.dropout(states, self.dropout, self.training)

    @torch.no_grad()
    def copy_from(self, layer: nn.Module, names: LayerNames | None) -> None:
        """Copy the weights of one of the encoder's layers, whose modules are called `names`.

        Raises DrkitError if the layer has no such modules (None).
        """
        if names is None:
            raise DrkitError(
                f"a decoder's layer cannot start from a {type(layer).__name__}, which is built differently (a decoder "
                f"has BERT's: attention, add, LayerNorm, feed-forward, add, LayerNorm, all biased); set init = 'random'"
            )
        for name, theirs in attrs.asdict(names).items():
            self.get_submodule(name).load_state_dict(layer.get_submodule(theirs).state_dict())


def visibility_rows(decoder: Any, length: int) -> int:
    """Return the number of visibility rows of a decoder for texts of `length` tokens; 0: a plain masked view."""
    return decoder.rows(length) if isinstance(decoder, ReadsRows) else 0


def layers_read(decoder: Any) -> tuple[int, ...]:
    """Return the numbers of the encoder's layers that a decoder reads."""
    return tuple(decoder.needs_layers) if isinstance(decoder, ReadsLayers) else ()


def uncomputed_states(labels: Tensor) -> TokenStates:
    """Return token states f[N,0] without numbers, of which only the labels are known: i64[B,L], -100: not a target."""
    found, heads = labels[labels != -100], cast("Any", None)
    return TokenStates(states=torch.zeros(len(found), 0), labels=found, heads=heads)


def states_at(layers: Iterable[nn.Module], states: Tensor, visible: Tensor, targets: Tensor) -> Tensor:
    """Return the last layer's states f[N,D] at the N targets bool[B,L], which alone it computes.

    layers: of `PostLnLayer`; states f[B,L,D]; visible bool[B,L,L] or bool[B,1,L].
    """
    *lower, last = layers
    for layer in lower:
        states = layer(states, states, visible)
    found: Tensor = last(states, states, visible, at=targets)
    return found


class Bottleneck(nn.Module):
    """The bottleneck h as the decoder reads it: unchanged, or through a linear projection (CDMAE's head)."""

    def __init__(self, hidden: int, projection: bool) -> None:
        super().__init__()
        self.projection = nn.Linear(hidden, hidden) if projection else nn.Identity()

    def forward(self, bottleneck: Tensor) -> Tensor:
        """Return the bottleneck for the decoder: f[B,D] -> f[B,D]."""
        projected: Tensor = self.projection(bottleneck)
        return projected


def with_bottleneck(bottleneck: Tensor, embedded: Tensor) -> Tensor:
    """Return embedded texts f[B,L,D] with position 0 replaced by the bottleneck f[B,D], unchanged."""
    return torch.cat([bottleneck[:, None], embedded[:, 1:]], dim=1)


def sizes_of(context: BuildContext) -> BackboneInfo:
    """Return the encoder's sizes.

    Raises DrkitError if the context has none.
    """
    if context.backbone is None:
        raise DrkitError("a decoder needs the encoder's sizes; build it with context_from(model, tokenizer)")
    return context.backbone


def init_weights(module: nn.Module, spread: float) -> None:
    """Initialise as BERT does: linear weights from Normal(0, spread), biases 0; LayerNorms are left unchanged."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=spread)
            nn.init.zeros_(part.bias)
