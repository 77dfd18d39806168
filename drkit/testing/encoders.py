"""The contracts of what an encoder is made of: its architecture, and the pooling of its hidden states."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from drkit.core.loading import without_progress_bars
from drkit.core.protocols import NamedVectors, SizedVectors
from drkit.core.registry import installed
from drkit.core.spec import ComponentSpec, Kind, vector_names
from drkit.decoders.layers import PostLnLayer
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.encoders.architectures import reads_both_ways
from drkit.testing.specs import build, checked_spec, require, running
from drkit.testing.toys import toy_context, toy_encoder, toy_tokenizer, toy_tokens

_PADDING = 5
SIZES = BertSizes(hidden=16, layers=2, heads=2, intermediate=24, max_positions=64, dropout=0.0)


def check_architecture(name: str, **more: Any) -> None:
    """Run the contract of architectures on one that an installed package declares.

    The record must fit a tiny model with random weights, whose configuration has usual sizes and the keys `more`.
    Logits and embeddings must be those of transformers; a text must have the same vector alone as in a batch, and in a
    model that reads from left to right with the padding on either side; if the record names the modules of a layer, a
    decoder's layer must take its weights; a saved model must be read back.
    """
    installed().extensions["architecture"].get(name)
    model_type = next((known for known in CONFIG_MAPPING_NAMES if known.replace("_", "-") == name), name)
    with running(name, "making a tiny model with random weights"):
        encoder = MaskedLmEncoder.from_scratch(SIZES, toy_tokenizer(), model_type=model_type, pooling="mean", **more)
    with torch.no_grad(), running(name, "encoding texts"):
        vectors = _check_outputs(name, encoder.eval())
    with running(name, "copying the last layer into a decoder's"):
        if encoder.architecture.layer:
            PostLnLayer(encoder.info(toy_tokenizer())).copy_from(encoder.layers[-1], encoder.architecture.layer)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), running(name, "saving and loading it"):
        with without_progress_bars():
            encoder.model.save_pretrained(folder)
        again = MaskedLmEncoder.from_pretrained(folder, pooling="mean")
        tokens = toy_tokens()
        found = again(tokens.ids, tokens.attention)["bottleneck"]
    require(_are_close(found, vectors), f"{name}: a saved model gives other vectors after it is loaded")


def _check_outputs(name: str, encoder: MaskedLmEncoder) -> Tensor:
    """Compare what drkit takes from a model with the model's own outputs; returns the vectors of the toy texts."""
    tokens, layers = toy_tokens(), encoder.config.num_hidden_layers
    ids, attention = tokens.ids, tokens.attention
    require(len(encoder.layers) == layers, f"{name}: `layers` has {len(encoder.layers)} modules, expected {layers}")
    mine = encoder.encode(ids, attention, layers=(0,))
    theirs = encoder.model(input_ids=ids, attention_mask=attention.long(), output_hidden_states=True)
    alone = {"other texts": encoder(ids[2:3, :9], attention[2:3, :9])["bottleneck"]}
    if not reads_both_ways(encoder.config):
        same = _are_close(mine.hidden[attention], theirs.last_hidden_state[attention])
        require(same, f"{name}: the hidden states are not those of transformers")
        alone["the side of the padding"] = encoder(ids[2:3].roll(-9), attention[2:3].roll(-9))["bottleneck"]
    else:
        _check_heads(name, encoder, mine.hidden, theirs)
    for what, vector in alone.items():
        require(_are_close(vector, mine.bottleneck[2:3]), f"{name}: a text's vector depends on {what}")
    return mine.bottleneck


def _check_heads(name: str, encoder: MaskedLmEncoder, hidden: Tensor, theirs: Any) -> None:
    """Compare embeddings, positions and logits, which decoders borrow, with the model's own outputs."""
    tokens, heads = toy_tokens(), encoder.heads()
    inside, embedded, positions = tokens.attention, heads.embed(tokens.ids), heads.positions(30)
    same = _are_close(heads.logits(hidden)[inside], theirs.logits[inside])
    require(same, f"{name}: the logits are not those of transformers")
    if heads.has_positions:
        same = _are_close(embedded[inside], theirs.hidden_states[0][inside])
        require(same, f"{name}: the embedded texts are not the first hidden states of transformers")
    shape = (30, encoder.config.hidden_size)
    require(positions.shape == shape, f"{name}: the positions are {tuple(positions.shape)}, expected {shape}")


def _are_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-5)


def check_pooling(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the pooling contract on a spec or the name of an installed part, with default settings or `config`.

    The part must be a module that turns hidden states f[B,L,D] and attention bool[B,L], and the LM head if its spec
    receives `heads`, into finite vectors f[B,dimension] (D without a `dimension`); the same each time, whatever the
    states of the padding, for a text alone as in a batch; gradient must reach every text and every weight of its own.
    A part that gives several vectors returns them by name, with the lengths of its `vector_lengths`; its spec provides
    `bottleneck:NAME` for each.
    """
    spec, config = checked_spec(Kind.POOLING, part, config)
    context = toy_context()
    assert context.backbone is not None
    pooling = build(spec, config, context)
    require(isinstance(pooling, torch.nn.Module), f"{spec.name}: expected an nn.Module, got {type(pooling).__name__}")
    attention = toy_tokens().attention
    draws = torch.Generator().manual_seed(0)
    heads = [toy_encoder().heads()] if "heads" in spec.receives else []
    hidden = torch.randn(*attention.shape, context.backbone.hidden, generator=draws, requires_grad=True)
    with running(spec.name, "calling it with hidden states and attention"):
        named = _check_names(spec, config, pooling, pooling(hidden, attention, *heads))
        vectors = _joined(pooling(hidden, attention, *heads))
        again = _joined(pooling(hidden, attention, *heads))
        padded = torch.nn.functional.pad(hidden, (0, 0, 0, _PADDING), value=7.0)
        wide = _joined(pooling(padded, torch.nn.functional.pad(attention, (0, _PADDING)), *heads))
        alone = _joined(pooling(hidden[-1:], attention[-1:], *heads))
    dimension = int(pooling.dimension) if isinstance(pooling, SizedVectors) else context.backbone.hidden
    dimension = sum(named.values()) or dimension
    expected = (len(attention), dimension)
    shape = tuple(vectors.shape)
    require(shape == expected, f"{spec.name}: vectors of shape {shape}, expected {expected} (texts, dimension)")
    require(bool(vectors.isfinite().all()), f"{spec.name}: some numbers of the vectors are not finite")
    require(torch.equal(vectors, again), f"{spec.name}: a second call gives other vectors")
    for what, found, wanted in (("the padding", wide, vectors), ("the other texts", alone, vectors[-1:])):
        require(torch.allclose(found, wanted, atol=1e-5), f"{spec.name}: a text's vector depends on {what}")
    torch.autograd.backward(vectors.square().sum())
    assert hidden.grad is not None
    require(bool((hidden.grad != 0).flatten(1).any(1).all()), f"{spec.name}: no gradient reaches the states of a text")
    idle = [name for name, weight in pooling.named_parameters() if weight.grad is None or not weight.grad.any()]
    require(not idle, f"{spec.name}: no gradient reaches the weight {', '.join(idle)}")


def _joined(found: Any) -> Tensor:
    """Return one vector, or several by name joined."""
    joined: Tensor = torch.cat([*found.values()], dim=-1) if isinstance(found, Mapping) else found
    return joined


def _check_names(spec: ComponentSpec, config: Any, pooling: Any, found: Any) -> dict[str, int]:
    """Return the lengths of named vectors; raises ContractError unless returned, declared and provided ones agree."""
    declared = dict(pooling.vector_lengths) if isinstance(pooling, NamedVectors) else {}
    returned = {name: vector.shape[-1] for name, vector in found.items()} if isinstance(found, Mapping) else {}
    same = returned == declared
    require(same, f"{spec.name}: it returns the vectors {returned}, but its vector_lengths are {declared}")
    provided = vector_names(spec.provides_of(config))
    same, named = tuple(sorted(declared)) == provided, ", ".join(provided) or "none"
    require(same, f"{spec.name}: its vector_lengths are {declared}, but its spec provides {named}")
    return declared
