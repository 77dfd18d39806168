"""The contract of an architecture: drkit computes with a tiny random model what transformers computes with it."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from drkit.core.loading import without_progress_bars
from drkit.core.registry import installed
from drkit.decoders.layers import PostLnLayer
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.testing.specs import require, running
from drkit.testing.toys import toy_tokenizer, toy_tokens

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
    if encoder.architecture.is_causal:
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
