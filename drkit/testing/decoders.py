"""The contract of a decoder: it owns none of the encoder's weights and sends gradient through the bottleneck."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.spec import ComponentSpec, Kind
from drkit.core.types import DecoderInput, MaskedView, TokenStates
from drkit.testing.specs import check_spec, require, signal_scopes, spec_of
from drkit.testing.toys import MASK, VOCAB, toy_context, toy_encoder, toy_tokens, with_signals

if TYPE_CHECKING:
    from drkit.core.protocols import Masker
    from drkit.encoders.masked_lm import MaskedLmEncoder

# Outputs of a decoder for every word of the vocabulary, [B,V], and for every target, [N].
SHAPES = {
    "vocab_logits": torch.float32,
    "words": torch.bool,
    "replaced_logits": torch.float32,
    "replaced": torch.bool,
}
PER_TARGET = ("replaced_logits", "replaced")


def check_decoder(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the decoder contract on a spec or the name of an installed part, with default settings or `config`.

    The decoder returns what its spec provides; its initial weights depend only on the seed; it owns none of the
    encoder's weights; its loss alone sends finite gradient into the encoder through the bottleneck (unless it provides
    nothing); padding does not change the result; it can be pickled. Its targets are its view's; without a view, those
    of the encoder's view, or all maskable tokens of the text (with or without its last token). A decoder that receives
    `replaced` gets a view whose [MASK]s are filled with other words.
    """
    spec = spec_of(Kind.DECODER, part)
    check_spec(spec)
    settings = spec.config() if config is None else config
    spec = attrs.evolve(spec, signals=tuple(spec.signals_of(settings)))
    decoder, encoder = _build(spec, config), toy_encoder().eval()
    out = _decode(spec, decoder, encoder)
    missing = set(spec.provides) - set(out)
    require(not missing, f"{spec.name}: its spec provides {', '.join(sorted(missing))}, but it does not return it")
    _check_states(out, spec, _inputs(spec, decoder, encoder))
    _check_start(spec, config, decoder)
    own = {id(parameter) for parameter in decoder.parameters()}
    require(not own & {id(p) for p in encoder.parameters()}, f"{spec.name}: owns weights of the encoder")
    _check_gradient(spec, decoder, encoder)
    padded = _decode(spec, decoder, encoder, padding=7)
    close = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(_values(out), _values(padded), strict=True))
    require(close, f"{spec.name}: padding changes the result")
    thawed = _decode(spec, pickle.loads(pickle.dumps(decoder)), encoder)
    same = all(torch.equal(a, b) for a, b in zip(_values(out), _values(thawed), strict=True))
    require(same, f"{spec.name}: pickling changes the result")


def _build(spec: ComponentSpec, config: Any) -> nn.Module:
    decoder = spec.load()(spec.config() if config is None else config, toy_context())
    require(isinstance(decoder, nn.Module), f"{spec.name}: a decoder must be an nn.Module")
    assert isinstance(decoder, nn.Module)
    return decoder.eval()


def _inputs(spec: ComponentSpec, decoder: Any, encoder: MaskedLmEncoder, padding: int = 0) -> DecoderInput:
    from drkit.maskers.views import keep_targets

    tokens, masker = with_signals(toy_tokens(padding=padding), signal_scopes(spec, None)), _masker(spec)
    draws, rows = Draws(1, 0, tokens.keys.numpy()), decoder.rows(tokens.ids.shape[1])
    views = masker(tokens, draws, rows=rows)
    if 0 < rows < tokens.ids.shape[1]:
        views = attrs.evolve(views, decoder=keep_targets(views.decoder, decoder.rows, draws))
    views = attrs.evolve(views, encoder=_filled(views.encoder), decoder=_filled(views.decoder))
    encoded = encoder.encode(views.encoder.ids, views.encoder.attention, tuple(decoder.needs_layers))
    return DecoderInput(encoded=encoded, tokens=views.context, view=views.decoder, encoder_view=views.encoder)


def _masker(spec: ComponentSpec) -> Masker:
    from drkit.maskers import GeneratorConfig, GeneratorMasker, UniformConfig, UniformMasker

    if "replaced" in spec.receives:
        return GeneratorMasker(GeneratorConfig(), toy_context())
    return UniformMasker(UniformConfig(), toy_context())


def _filled(view: MaskedView) -> MaskedView:
    """Return the view with [MASK]s replaced by ordinary words, if it is meant to be filled by a generator."""
    if view.noise is None:
        return view
    words = MASK + 1 + (view.noise * (VOCAB - MASK - 1)).long()
    return attrs.evolve(view, ids=torch.where(view.ids == MASK, words, view.ids))


def _decode(spec: ComponentSpec, decoder: Any, encoder: MaskedLmEncoder, padding: int = 0) -> Mapping[str, Any]:
    out = decoder(_inputs(spec, decoder, encoder, padding), encoder.heads())
    require(isinstance(out, Mapping), f"a decoder must return a mapping of names, got {type(out).__name__}")
    assert isinstance(out, Mapping)
    return out


def _values(out: Mapping[str, Any]) -> list[Tensor]:
    return [value.states if isinstance(value, TokenStates) else value for _, value in sorted(out.items())]


def _check_states(out: Mapping[str, Any], spec: ComponentSpec, inputs: DecoderInput) -> None:
    name, possible = spec.name, _possible_targets(spec, inputs)
    for key, value in out.items():
        if isinstance(value, TokenStates):
            shape = (len(value.labels), 16)
            require(value.states.shape == shape, f"{name}: {key} has states {(*value.states.shape,)}, expected {shape}")
            matches = any(torch.equal(value.labels, labels) for labels in possible.values())
            require(matches, f"{name}: the labels of {key} are not the {' or the '.join(possible)}")
        if key in SHAPES and isinstance(value, Tensor):
            targets = next(iter(possible.values()))
            shaped = (len(targets),) if key in PER_TARGET else (len(inputs.view.labels), VOCAB)
            require(tuple(value.shape) == shaped, f"{name}: {key} has shape {tuple(value.shape)}, expected {shaped}")
            require(value.dtype == SHAPES[key], f"{name}: {key} is {value.dtype}, expected {SHAPES[key]}")
        require(bool(_values({key: value})[0].isfinite().all()), f"{name}: {key} is not finite")


def _possible_targets(spec: ComponentSpec, inputs: DecoderInput) -> dict[str, Tensor]:
    """Return the allowed labels of a decoder, in reading order: of its view, if it reads one."""
    if {"view", "rows"} & {*spec.receives}:
        return {"view's targets": inputs.view.labels[inputs.view.labels != -100]}
    assert inputs.encoder_view is not None
    tokens, own = inputs.tokens, inputs.encoder_view.labels
    without_first = tokens.attention.clone()
    without_first[:, 0] = False
    return {
        "text's maskable tokens": tokens.ids[tokens.maskable],
        "text's tokens without the first": tokens.ids[without_first],
        "encoder's view's targets": own[own != -100],
    }


def _check_start(spec: ComponentSpec, config: Any, decoder: nn.Module) -> None:
    before = torch.get_rng_state()
    again = _build(spec, config).state_dict()
    require(torch.equal(before, torch.get_rng_state()), f"{spec.name}: building it draws from the global generator")
    same = all(torch.equal(value, again[key]) for key, value in decoder.state_dict().items())
    require(same, f"{spec.name}: the same seed gives different weights")


def _check_gradient(spec: ComponentSpec, decoder: Any, encoder: MaskedLmEncoder) -> None:
    name, inputs = spec.name, _inputs(spec, decoder, encoder)
    inputs.encoded.bottleneck.retain_grad()
    out = decoder(inputs, encoder.heads())
    if not out:
        require(not [*decoder.parameters()], f"{name}: provides nothing, but has weights")
        return
    pieces = [
        value.heads.lm_loss(value.states, value.labels)
        if isinstance(value, TokenStates)
        else value.float().pow(2).sum()
        for value in out.values()
    ]
    torch.autograd.backward(torch.stack(pieces).sum())
    gradient = inputs.encoded.bottleneck.grad
    require(gradient is not None and bool(gradient.any()), f"{name}: no gradient reaches the bottleneck")
    parameters = [*encoder.parameters(), *decoder.parameters()]
    finite = all(p.grad is None or bool(p.grad.isfinite().all()) for p in parameters)
    require(finite, f"{name}: a gradient is not finite")
    idle = [key for key, p in decoder.named_parameters() if p.grad is None]
    require(not idle, f"{name}: no gradient reaches its own weights {', '.join(idle)}")
