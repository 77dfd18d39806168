"""What a decoder is made with: the encoder's embeddings and language-model head for one call, and seeded weights.

The vocabulary projection is more than half of a pre-training step, so it is applied to target positions only, and its
cross-entropy uses torch's fused kernel if the installed torch has one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drkit.core.types import LmHeads, TokenStates
from drkit.encoders.architectures import GELU, TIED, Architecture, architecture, first_position, has_module
from drkit.errors import DrkitError

# Logits held at once by the fused cross-entropy: 64 MB in float32, and at most 512 rows. torch's own heuristic aims at
# the size of the hidden states (16 rows for BERT's vocabulary) and is four to seven times slower on CPU. From about
# 500 rows on, chunking costs no time (measured at 1400 and 4200 targets, vocabularies of 4000 to 30522); more rows
# than that leave the processor's cache (2097 rows of 8000 logits: a fifth slower).
LOGITS_AT_ONCE, ROWS_AT_ONCE = 2**24, 512
_FUSED = hasattr(F, "linear_cross_entropy") and hasattr(nn, "LinearCrossEntropyOptions")


class Heads:
    """Embeddings and LM head of a masked LM. Not a module: it owns no parameters and is made for each call.

    model: the masked LM; where: the record of its architecture. `weight` f[V,E] is the projection, tied to the word
    embeddings; E is D, except in some ELECTRAs. A model without position embeddings (ModernBERT rotates
    queries and keys instead) provides fixed sinusoids of the word embeddings' size, and `embed` adds them, because a
    decoder's attention could not distinguish positions otherwise. A decoder-only model has no layer but its word
    embeddings, which are far smaller than its states: `embed` scales each to a root mean square of 1, that of its
    sinusoids.
    """

    def __init__(self, model: nn.Module, where: Architecture) -> None:
        lm: Any = model
        self._backbone = lm.base_model
        self._embeddings = self._backbone.get_submodule(where.embeddings)
        is_there = where.positions and has_module(self._backbone, where.positions)
        self._positions = self._backbone.get_submodule(where.positions) if is_there else None
        self._words = lm.get_input_embeddings()
        self._is_bare = self._embeddings is self._words and where.is_causal
        self.weight, self._bias = projection(lm, where)
        self._project = getattr(self._backbone, where.embeddings_project, None) if where.embeddings_project else None
        self._steps = [F.gelu if step == GELU else lm.get_submodule(step) for step in where.transform]

    @property
    def has_positions(self) -> bool:
        """Whether the model has a position table; otherwise positions are sinusoids."""
        return self._positions is not None

    def embed(self, ids: Tensor) -> Tensor:
        """Apply the whole embedding layer (word, position, type, LayerNorm, dropout) to ids i64[B,L]; f[B,L,D]."""
        if self._is_bare:
            return self.embed_vectors(self._words(ids))
        if not self.has_positions:
            return self._embedded_vectors(self._words(ids) + self.positions(ids.shape[1]))
        return self._projected(self._embeddings(input_ids=ids))

    def embed_vectors(self, vectors: Tensor) -> Tensor:
        """Apply the embedding layer (position, first type, LayerNorm, dropout) to word vectors f[B,L,D]; f[B,L,D].

        Raises DrkitError if word embeddings and hidden states have different sizes.
        """
        if self._project is not None:
            raise DrkitError(
                f"this encoder's word vectors have {self._words.weight.shape[1]} dimensions and its hidden states "
                f"{vectors.shape[-1]}, so a bottleneck cannot replace a word. Query with positions alone "
                f"(the decoder's setting query = 'position'), or use an encoder with equally wide embeddings"
            )
        if self._is_bare:
            return _unit_size(vectors) + self.positions(vectors.shape[1])
        if not self.has_positions:
            return self._embedded_vectors(vectors + self.positions(vectors.shape[1]))
        return self._embedded_vectors(vectors)

    def positions(self, length: int) -> Tensor:
        """Return the raw position embeddings of the first `length` tokens, f[L,D], projected like words (no bias)."""
        if self._positions is None:
            words: Tensor = self._words.weight
            return sinusoids(length, torch.ones_like(words[:1]) if self._is_bare else words)
        table = self._positions.weight
        first = first_position(self._backbone.config)
        raw: Tensor = table[first : first + length]
        return raw if self._project is None else F.linear(raw, self._project.weight)

    def logits(self, states: Tensor) -> Tensor:
        """Apply transform, tied projection and bias to states f[..., D]; f[..., V]."""
        return F.linear(self._transformed(states), self.weight, self._bias)

    def lm_loss(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of states f[N,D] against labels i64[N], f[].

        With N = 0 it is a zero with a graph, so that ranks without targets stay in step.
        """
        if not len(labels):
            return self.logits(states).sum()
        return projected_cross_entropy(self._transformed(states), self.weight, self._bias, labels)

    @torch.no_grad()
    def lm_accuracy(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return the share of states f[N,D] whose best token is the label, f[] (0 if N = 0); for probes, not steps."""
        correct = torch.zeros((), dtype=torch.long, device=labels.device)
        for some, targets in _chunks(states, labels, len(self.weight)):
            correct += (self.logits(some).argmax(-1) == targets).sum()
        return correct / max(1, len(labels))

    def _embedded_vectors(self, vectors: Tensor) -> Tensor:
        # `inputs_embeds`, but `input_embeds` in DistilBERT of some versions of transformers.
        names = inspect.signature(self._embeddings.forward).parameters
        name = next(name for name in names if name.endswith("_embeds"))
        return self._projected(self._embeddings(**{"input_ids": None, name: vectors}))

    def _projected(self, embedded: Tensor) -> Tensor:
        return embedded if self._project is None else self._project(embedded)

    def _transformed(self, states: Tensor) -> Tensor:
        for step in self._steps:
            states = step(states)
        return states


def _unit_size(vectors: Tensor) -> Tensor:
    """Return vectors f[..., D], each with a root mean square of 1."""
    return F.rms_norm(vectors, vectors.shape[-1:], eps=1e-12)


def projection(model: Any, where: Architecture) -> tuple[Tensor, Tensor | None]:
    """Return the weight f[V,E] and the bias f[V], if it has one, of the last step of a masked LM's head."""
    if where.lm_bias:
        return model.get_input_embeddings().weight, model.get_parameter(where.lm_bias)
    last = model.get_output_embeddings()
    return last.weight, getattr(last, "bias", None)


def sinusoids(length: int, words: Tensor) -> Tensor:
    """Return fixed sinusoidal positions f[L,D] with the root mean square of the word embeddings f[V,D].

    A function of the weights alone, so that a resumed training gets the same ones. The size is estimated from every
    n-th row, which is cheap and accurate enough. Source: Vaswani et al. 2017, section 3.5.
    """
    width = words.shape[1]
    size = words.detach()[:: max(1, len(words) // 1024)].float().square().mean().sqrt()
    pair = torch.arange(width, device=words.device) // 2
    angle = torch.arange(length, device=words.device)[:, None] / 10_000 ** (2 * pair / width)
    waves = torch.where(torch.arange(width, device=words.device) % 2 == 0, angle.sin(), angle.cos())
    return (waves * size * 2**0.5).to(words.dtype)


def tie_lm_head(model: Any) -> None:
    """Reduce the LM head of a model, in place, to the tied projection: states are compared with word embeddings.

    A small encoder with embeddings from counts keeps their geometry this way, and the head has less to learn.

    Raises DrkitError if the transform cannot be removed: its activation is a function, or embeddings and hidden states
    have different sizes.
    """
    where = architecture(model.config.model_type)
    if GELU in where.transform:
        raise DrkitError(
            f"the LM head of a {type(model).__name__} applies its activation as a function, so it cannot be reduced to "
            f"the tied projection; set lm_head = 'transform'"
        )
    states, words = model.config.hidden_size, model.get_input_embeddings().weight.shape[1]
    if states != words:
        raise DrkitError(
            f"the LM head of this {type(model).__name__} maps hidden states of size {states} to word embeddings of "
            f"size {words}, which a tied projection cannot do; set lm_head = 'transform'"
        )
    for step in where.transform:
        model.set_submodule(step, nn.Identity())
    setattr(model.config, TIED, True)


def projected_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of `states @ weight.T + bias`, f[]; if torch can, without keeping f[N,V] logits.

    states f[N,D], weight f[V,D], bias f[V] or None, labels i64[N], N > 0. The fused kernel computes its gradients in
    the forward pass, so its backward runs only once (no `retain_graph`).
    """
    if not _FUSED:
        return F.cross_entropy(F.linear(states, weight, bias), labels)
    if torch.is_autocast_enabled(states.device.type):  # the fused kernel is not on autocast's list
        dtype = torch.get_autocast_dtype(states.device.type)
        states, weight, bias = states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if not torch.is_grad_enabled():  # the fused kernel would compute gradients for nothing
        return _chunked_cross_entropy(states, weight, bias, labels)
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=_rows(len(weight)))
    return F.linear_cross_entropy(states, weight, labels, linear_bias=bias, options=options)


def _chunked_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    sums = [
        F.cross_entropy(F.linear(some, weight, bias).float(), targets, reduction="sum")
        for some, targets in _chunks(states, labels, len(weight))
    ]
    return torch.stack(sums).sum() / len(labels)


def _chunks(states: Tensor, labels: Tensor, vocab: int) -> Iterator[tuple[Tensor, Tensor]]:
    rows = _rows(vocab)
    return ((states[at : at + rows], labels[at : at + rows]) for at in range(0, len(labels), rows))


def _rows(vocab: int) -> int:
    return max(1, min(ROWS_AT_ONCE, LOGITS_AT_ONCE // vocab))


def pool_logits(
    states: Tensor,
    attention: Tensor,
    heads: LmHeads,
    reduce: Callable[[Tensor, Tensor], Tensor],
    *,
    at_once: int = LOGITS_AT_ONCE,
) -> Tensor:
    """Reduce the logits of all positions to one number for each text and word, f[B,V], without ever holding f[B,L,V].

    states f[B,L,D], attention bool[B,L]. reduce: called with the logits f[b,L,V] of a few texts, which it may
    overwrite, and their attention bool[b,L]; returns f[b,V]. at_once: number of logits held at once, or those of one
    text if that is more; the backward pass computes them again.
    """
    size = max(1, at_once // (states.shape[1] * len(heads.weight)))
    attention = attention.bool()

    def reduced(some: Tensor, kept: Tensor) -> Tensor:
        return reduce(heads.logits(some), kept)

    pooled = [
        checkpoint(reduced, states[at : at + size], attention[at : at + size], use_reentrant=False)
        for at in range(0, len(states), size)
    ]
    return torch.cat(pooled)


def highest_logits(logits: Tensor, attention: Tensor) -> Tensor:
    """Return the largest logit f[B,V] of each word over the real positions of f[B,L,V], which are overwritten.

    Neither the projection nor the maximum needs the original logits in its backward pass.
    """
    return logits.masked_fill_(~attention[:, :, None], torch.finfo(logits.dtype).min).max(1).values


def token_states(hidden: Tensor, labels: Tensor, heads: Heads) -> TokenStates:
    """Select the states f[B,L,D] at target positions (labels i64[B,L], -100: not a target), in reading order."""
    targets = labels != -100
    return TokenStates(states=hidden[targets], labels=labels[targets], heads=heads)


def preceding_states(hidden: Tensor, labels: Tensor, heads: Heads) -> TokenStates:
    """Select the states f[B,L,D] one position before each target, as a causal LM predicts it; the first has none.

    labels i64[B,L], -100: not a target.
    """
    return token_states(hidden[:, :-1], labels[:, 1:], heads)


def weighted_lm_loss(states: Tensor, labels: Tensor, weights: Tensor, heads: LmHeads) -> Tensor:
    """Return the sum of the cross-entropies of states f[N,D] against labels i64[N], times weights f[N], f[].

    The logits of at most `LOGITS_AT_ONCE` numbers are held at once; the backward pass computes them again. With N = 0
    it is a zero with a graph.
    """
    if not len(labels):
        return heads.logits(states).sum()

    def summed(some: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
        logits = heads.logits(some)
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return (F.cross_entropy(exact, targets, reduction="none") * factors).sum()

    rows = _rows(len(heads.weight))
    parts = [
        checkpoint(summed, states[at : at + rows], labels[at : at + rows], weights[at : at + rows], use_reentrant=False)
        for at in range(0, len(labels), rows)
    ]
    return torch.stack(parts).sum()


@contextmanager
def seeded(seed: int, what: str = "weights") -> Iterator[None]:
    """Seed torch's CPU generator by `seed` and the name `what` in a block, and restore its state afterwards.

    Two modules with the same seed get different weights because their names differ.

    >>> with seeded(1, "decoder"):
    ...     first = torch.rand(2)
    >>> with seeded(1, "decoder"):
    ...     second = torch.rand(2)
    >>> torch.equal(first, second)
    True
    """
    state = torch.get_rng_state()
    stream = sha256(f"{seed}/{what}".encode()).digest()
    torch.default_generator.manual_seed(int.from_bytes(stream[:7], "little"))
    try:
        yield
    finally:
        torch.set_rng_state(state)
