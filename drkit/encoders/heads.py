"""The encoder's embeddings and language-model head, lent to a decoder or a loss for one call.

The vocabulary projection is more than half of a pre-training step, so it is applied to target positions
only, and its cross-entropy goes through torch's fused kernel where the installed torch has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drkit.core.types import TokenStates
from drkit.encoders.architectures import architecture

if TYPE_CHECKING:
    from drkit.encoders.architectures import Architecture

# Kept in a checkpoint's config.json, so that loading it does not bring the transform back.
TIED = "drkit_tied_lm_head"
# Logits held at once by the fused cross-entropy: 64 MB in float32. torch's own heuristic aims at the size of the
# hidden states (16 rows for BERT's vocabulary) and is four to seven times slower on CPU; from about 500 rows a
# chunk costs no time (measured at 1400 and 4200 targets, vocabularies of 4000 to 30522).
LOGITS_AT_ONCE = 2**24
_FUSED = hasattr(F, "linear_cross_entropy") and hasattr(nn, "LinearCrossEntropyOptions")


class Heads:
    """Embeddings and LM head of a masked LM. Borrowed per call: no module, owns no parameter.

    model: the masked LM; where: the record that says where its pieces are.
    """

    def __init__(self, model: nn.Module, where: Architecture) -> None:
        self._embeddings = model.get_submodule(where.embeddings)
        self._words = model.get_submodule(where.word_embeddings)
        self._positions = model.get_submodule(where.positions)
        self._offset = where.position_offset
        self._transform = model.get_submodule(where.transform)
        self._bias = model.get_parameter(where.projection_bias)

    @property
    def weight(self) -> Tensor:
        """f[V,D]: the word embeddings, which are the projection too."""
        weight = self._words.weight
        assert isinstance(weight, Tensor)
        return weight

    def embed(self, ids: Tensor) -> Tensor:
        """f[B,L,D]: the whole embedding layer (word, position, type, LayerNorm, dropout) of ids i64[B,L]."""
        embedded: Tensor = self._embeddings(input_ids=ids)
        return embedded

    def embed_vectors(self, vectors: Tensor) -> Tensor:
        """f[B,L,D]: the whole embedding layer (position, first type, LayerNorm, dropout) of word vectors f[B,L,D]."""
        embedded: Tensor = self._embeddings(inputs_embeds=vectors)
        return embedded

    def positions(self, length: int) -> Tensor:
        """f[L,D]: the raw position embeddings of the first `length` tokens."""
        table = self._positions.weight
        assert isinstance(table, Tensor)
        return table[self._offset : self._offset + length]

    def logits(self, states: Tensor) -> Tensor:
        """f[..., V]: transform, tied projection and bias of states f[..., D]."""
        return F.linear(self._transform(states), self.weight, self._bias)

    def lm_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """f[]: the mean cross-entropy of states f[N,D] against labels i64[N].

        With N = 0 it is a zero that still has a graph, so that ranks without a target keep in step.
        """
        if not len(labels):
            return self.logits(states).sum()
        return projected_cross_entropy(self._transform(states), self.weight, self._bias, labels)

    @torch.no_grad()
    def lm_accuracy(self, states: Tensor, labels: Tensor) -> Tensor:
        """f[]: the share of states f[N,D] whose best-scored word is the label, 0 where N = 0. For probes, not steps."""
        right = torch.zeros((), dtype=torch.long, device=labels.device)
        for part, wanted in _chunks(states, labels, len(self.weight)):
            right += (self.logits(part).argmax(-1) == wanted).sum()
        return right / max(1, len(labels))


def tie_lm_head(model: Any) -> None:
    """Reduce the LM head to the tied projection: states are compared with word embeddings as they are.

    A small encoder whose embeddings start from counts keeps its geometry this way; the head has less to learn.
    """
    model.set_submodule(architecture(model.config.model_type).transform, nn.Identity())
    setattr(model.config, TIED, True)


def projected_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """f[]: mean cross-entropy of `states @ weight.T + bias` without keeping the f[N,V] logits, where torch can.

    states f[N,D], weight f[V,D], bias f[V], labels i64[N], N > 0. The fused kernel computes its gradients in
    the forward pass: its backward runs once (no `retain_graph`).
    """
    if not _FUSED:
        return F.cross_entropy(F.linear(states, weight, bias), labels)
    if torch.is_autocast_enabled(states.device.type):  # the fused kernel is not on autocast's list
        dtype = torch.get_autocast_dtype(states.device.type)
        states, weight, bias = states.to(dtype), weight.to(dtype), bias.to(dtype)
    if not torch.is_grad_enabled():  # nothing to keep, and the chunked kernel is made for training
        return _chunked_cross_entropy(states, weight, bias, labels)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=_rows(len(weight)))
    return F.linear_cross_entropy(states, weight, labels, linear_bias=bias, options=options)


def _chunked_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    sums = [
        F.cross_entropy(F.linear(part, weight, bias).float(), wanted, reduction="sum")
        for part, wanted in _chunks(states, labels, len(weight))
    ]
    return torch.stack(sums).sum() / len(labels)


def _chunks(states: Tensor, labels: Tensor, vocab: int) -> Iterator[tuple[Tensor, Tensor]]:
    rows = _rows(vocab)
    return ((states[at : at + rows], labels[at : at + rows]) for at in range(0, len(labels), rows))


def _rows(vocab: int) -> int:
    return max(1, LOGITS_AT_ONCE // vocab)


def token_states(hidden: Tensor, labels: Tensor, heads: Heads) -> TokenStates:
    """The states f[B,L,D] at target positions alone (labels i64[B,L], -100: no target), in reading order."""
    targets = labels != -100
    return TokenStates(states=hidden[targets], labels=labels[targets], heads=heads)
