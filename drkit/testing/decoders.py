"""The contract of a decoder: it owns none of the encoder's weights and sends gradient through the bottleneck."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import safetensors.torch
import torch
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.loading import weights_to_save
from drkit.core.protocols import CountsTargets, ReadsLayers
from drkit.core.spec import Choice, ComponentSpec, Kind, vector_names
from drkit.core.types import DecoderInput, Encoded, MaskedView, TokenBatch, TokenStates, map_tensors
from drkit.decoders.layers import layers_read, visibility_rows
from drkit.encoders import MaskedLmEncoder
from drkit.maskers import UniformConfig, UniformMasker
from drkit.maskers.views import keep_targets
from drkit.testing.data import toy_signals
from drkit.testing.specs import ContractError, build, checked_spec, pickled, require, running, spec_of
from drkit.testing.toys import (
    MASK,
    VOCAB,
    pooled_toy_encoder,
    rows_of,
    toy_context,
    toy_encoder,
    toy_tokens,
    with_signals,
)

# Outputs of a decoder for every word of the vocabulary, [B,V], and for every target, [N].
DTYPES = {"vocab_logits": torch.float32, "words": torch.bool, "replaced": torch.bool}


def check_decoder(part: ComponentSpec | str, config: Any = None, *, pooling: Choice | None = None) -> None:
    """Run the decoder contract on a spec or the name of an installed part, with default settings or `config`.

    pooling: that of the toy encoder, for a decoder that reads named vectors; None: the first token's state.

    The decoder returns what its spec provides; its initial weights depend only on the seed; it owns none of the
    encoder's weights; its outputs alone send finite gradient into the encoder through the bottleneck (into the states
    of tokens, if it receives `hidden`) and into every weight of its own (unless it provides nothing); a second call,
    padding, and the other texts of the batch do not change the result; it can be pickled, and its weights saved and
    loaded. Labels of token states are tokens of the texts, in reading order. Outputs under names of its own may be
    tensors, or bundles, tuples, lists and mappings of them. A decoder that receives `replaced` gets a view whose
    [MASK]s are filled with other words.
    """
    spec, settings = checked_spec(Kind.DECODER, part, config)
    spec = attrs.evolve(spec, signals=tuple(spec.signals_of(settings)), receives=spec.receives_of(settings))
    encoder = pooled_toy_encoder(pooling).eval()
    decoder = _build(spec, settings, encoder)
    check_declarations(decoder, spec.name, 33)
    out = _decode(spec, decoder, encoder)
    require_outputs(out, spec.name, spec.provides_of(settings))
    inputs = _inputs(spec, decoder, encoder)
    check_outputs(out, spec.name, texts=len(inputs.tokens.ids), words=VOCAB, width=inputs.encoded.hidden.shape[2])
    _check_targets(out, spec, inputs)
    check_counts(decoder, inputs, out, spec.name)
    _require_same(out, _decode(spec, decoder, encoder), f"{spec.name}: a second call in eval mode gives another result")
    _check_start(spec, settings, decoder, encoder)
    own = {id(parameter) for parameter in decoder.parameters()}
    require(not own & {id(p) for p in encoder.parameters()}, f"{spec.name}: owns weights of the encoder")
    _check_gradient(spec, decoder, encoder)
    _require_close(out, _decode(spec, decoder, encoder, padding=7), f"{spec.name}: padding changes the result")
    for some in ([0], [0, 1, 2]):
        alone = _decode(spec, decoder, encoder, some=some)
        message = f"{spec.name}: the result of a text depends on the other texts of the batch"
        _require_close(out, alone, message, first=True)
    thawed = _decode(spec, pickled(spec.name, decoder), encoder)
    _require_same(out, thawed, f"{spec.name}: pickling changes the result")
    _check_saving(spec, settings, decoder, encoder, out)


def _build(spec: ComponentSpec, config: Any, encoder: MaskedLmEncoder, seed: int = 7) -> nn.Module:
    decoder = build(spec, config, attrs.evolve(toy_context(seed), vector_sizes=encoder.vector_sizes))
    require(isinstance(decoder, nn.Module), f"{spec.name}: a decoder must be an nn.Module")
    assert isinstance(decoder, nn.Module)
    return decoder.eval()


def check_declarations(decoder: Any, title: str, length: int) -> None:
    """Check which layers a decoder reads, and the rows of a text of some tokens. Raises ContractError."""
    layers = decoder.needs_layers if isinstance(decoder, ReadsLayers) else ()
    numbers = isinstance(layers, (tuple, list)) and all(isinstance(layer, int) for layer in layers)
    require(numbers, f"{title}: needs_layers must be a tuple of layer numbers, got {layers!r}")
    with running(title, f"rows({length})"):
        rows = visibility_rows(decoder, length)
    counts = isinstance(rows, int) and 0 <= rows <= length
    require(counts, f"{title}: rows({length}) must be a number of rows from 0 to {length}, got {rows!r}")


def _check_saving(spec: ComponentSpec, config: Any, decoder: nn.Module, encoder: Any, out: Mapping[str, Any]) -> None:
    """Check that saved weights are all of a decoder: a new one that loads them gives the same result."""
    other = _build(spec, config, encoder, seed=8)
    check_saving(spec.name, decoder, other)
    loaded = _decode(spec, other, encoder)
    _require_same(out, loaded, f"{spec.name}: saving and loading its weights changes the result; register every tensor")


def check_saving(title: str, module: nn.Module, other: nn.Module) -> None:
    """Check that a training can save a module and resume: `other`, built alike, has the same weights afterwards.

    Raises ContractError, also for tensors that are registered only in a call, which the new module does not have.
    """
    with running(title, "saving the weights of state_dict()"):
        saved = safetensors.torch.save(weights_to_save(module))
    weights = safetensors.torch.load(saved)
    try:
        other.load_state_dict(weights)
    except Exception as error:
        what = f"loading the weights of state_dict() into a new one raises {type(error).__name__}"
        raise ContractError(f"{title}: {what}: {' '.join(str(error).split())[:200]}") from error
    for name, value in weights_to_save(other).items():
        same = torch.equal(value.nan_to_num(), weights[name].nan_to_num())
        require(same, f"{title}: {name!r} is another tensor after its weights are saved and loaded")


def _inputs(
    spec: ComponentSpec, decoder: Any, encoder: MaskedLmEncoder, padding: int = 0, some: Sequence[int] | None = None
) -> DecoderInput:
    tokens = with_signals(toy_tokens(padding=padding), toy_signals(spec, None))
    tokens = tokens if some is None else rows_of(tokens, some)
    draws, rows = Draws(1, 0, tokens.keys.numpy()), visibility_rows(decoder, tokens.ids.shape[1])
    masker, harder = (UniformMasker(UniformConfig(ratio=ratio), toy_context()) for ratio in (0.3, 0.5))
    read, view = masker(tokens, draws), harder(tokens, draws, rows=rows)
    if 0 < rows < tokens.ids.shape[1]:
        view = keep_targets(view, decoder.rows, draws)
    if "replaced" in spec.receives:
        read, view = _filled(read, tokens), _filled(view, tokens)
    encoded = encoder.encode(read.ids, read.attention, layers_read(decoder))
    return DecoderInput(encoded=encoded, tokens=tokens, view=view, encoder_view=read)


def _filled(view: MaskedView, tokens: TokenBatch) -> MaskedView:
    """Return the view as a model fills it: another word in place of each [MASK], every maskable token a target."""
    others = MASK + 1 + tokens.ids % (VOCAB - MASK - 1)
    labels = torch.where(tokens.maskable, tokens.ids, -100)
    return attrs.evolve(view, ids=torch.where(view.ids == MASK, others, view.ids), labels=labels)


def _decode(
    spec: ComponentSpec, decoder: Any, encoder: MaskedLmEncoder, padding: int = 0, some: Sequence[int] | None = None
) -> Mapping[str, Any]:
    inputs = _inputs(spec, decoder, encoder, padding, some)
    with running(spec.name, f"decoding {len(inputs.tokens.ids)} text(s)"):
        out = decoder(inputs, encoder.heads())
    return require_outputs(out, spec.name, frozenset())


def require_outputs(out: Any, title: str, provided: frozenset[str]) -> Mapping[str, Any]:
    """Return what a decoder returned; raises ContractError unless it is a mapping that has what the spec provides."""
    require(isinstance(out, Mapping), f"{title}: a decoder must return a mapping of names, got {type(out).__name__}")
    missing, names = sorted(provided - set(out)), ", ".join(map(str, out)) or "nothing"
    require(not missing, f"{title}: its spec provides {', '.join(missing)}; its output has {names}")
    found: Mapping[str, Any] = out
    return found


def toy_outputs(part: ComponentSpec | str, rows: Sequence[int]) -> dict[str, Any]:
    """Return what a decoder makes of some of the toy texts, as leaves that receive gradient."""
    spec = spec_of(Kind.DECODER, part)
    encoder = toy_encoder().eval()
    decoder = _build(spec, spec.config(), encoder)
    out = _decode(spec, decoder, encoder, some=rows)

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(tensor.is_floating_point())

    return {
        name: attrs.evolve(value, states=leaf(value.states)) if hasattr(value, "states") else map_tensors(value, leaf)
        for name, value in out.items()
    }


def _values(out: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, value in sorted(out.items()) for tensor in _tensors(value)]


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of an output; of states only these."""
    if hasattr(value, "states"):
        return [value.states]
    found: list[Tensor] = []
    map_tensors(value, found.append)
    return found


def _require_same(one: Mapping[str, Any], other: Mapping[str, Any], message: str) -> None:
    pairs = zip(_values(one), _values(other), strict=True)
    require(all(torch.equal(a, b) for (_, a), (_, b) in pairs), message)


def _require_close(one: Mapping[str, Any], other: Mapping[str, Any], message: str, *, first: bool = False) -> None:
    """Require that outputs are close; first: the first rows of `one`, as many as `other` has."""
    for (name, a), (_, b) in zip(_values(one), _values(other), strict=True):
        mine = a[tuple(slice(size) for size in b.shape)] if first else a
        require(mine.shape == b.shape, f"{message}: {name} has shape {tuple(mine.shape)} and {tuple(b.shape)}")
        require(torch.allclose(mine.float(), b.float(), atol=1e-5), f"{message}: {name}")


def check_outputs(out: Mapping[str, Any], title: str, *, texts: int, words: int, width: int) -> None:
    """Check types, shapes and dtypes of the outputs that drkit's losses read; others only need to be finite.

    texts: of the batch; words: of the vocabulary; width: of a hidden state. Raises ContractError.
    """
    for name, value in out.items():
        what = f"{title}: {name}"
        if name == "token_states" or isinstance(value, TokenStates):
            _check_token_states(value, what, words, width)
        elif name in DTYPES:
            require(isinstance(value, Tensor), f"{what} must be a tensor, got {type(value).__name__}")
            expected = (len(value),) if name == "replaced" else (texts, words)
            require(value.shape == expected, f"{what} has shape {tuple(value.shape)}, expected {expected}")
            require(value.dtype == DTYPES[name], f"{what} is {value.dtype}, expected {DTYPES[name]}")
        finite = all(bool(tensor.isfinite().all()) for tensor in _tensors(value))
        require(finite, f"{what} has values that are nan or infinite, expected finite numbers")


def _check_token_states(value: Any, what: str, words: int, width: int) -> None:
    require(isinstance(value, TokenStates), f"{what} must be TokenStates, got {type(value).__name__}")
    labels, shape = value.labels, (len(value.labels), width)
    require(labels.dtype == torch.long, f"{what} has labels of {labels.dtype}, expected int64")
    require(value.states.shape == shape, f"{what} has states {tuple(value.states.shape)}, expected {shape}")
    require(value.states.is_floating_point(), f"{what} has states of {value.states.dtype}, expected a float")
    known = bool(((labels >= 0) & (labels < words)).all())
    require(known, f"{what} has labels outside the vocabulary (expected 0 to {words - 1}, at targets only)")


def scalar_of(value: Any) -> Tensor | None:
    """Return a scalar that depends on all of an output; None if the output carries no gradient."""
    if isinstance(value, TokenStates):
        return value.heads.lm_loss(value.states, value.labels)
    squares = [tensor.float().pow(2).sum() for tensor in _tensors(value) if tensor.requires_grad]
    return torch.stack(squares).sum() if squares else None


def _check_targets(out: Mapping[str, Any], spec: ComponentSpec, inputs: DecoderInput) -> None:
    """Check that outputs for targets are for tokens of the texts, in reading order."""
    reads_view = {"view", "rows"} & {*spec.receives}
    targets = int((inputs.view.labels != -100).sum() if reads_view else inputs.tokens.maskable.sum())
    for key, value in out.items():
        if isinstance(value, TokenStates):
            found = _are_within(value.labels, inputs.tokens.ids[inputs.tokens.attention])
            require(found, f"{spec.name}: the labels of {key} are not tokens of the texts in reading order")
        elif key == "replaced":
            require(len(value) == targets, f"{spec.name}: {key} has shape ({len(value)},), expected ({targets},)")


def check_counts(decoder: Any, inputs: DecoderInput, out: Mapping[str, Any], title: str) -> None:
    """Check that a decoder that counts its targets before it computes anything counts those that it returns.

    Raises ContractError.
    """
    if not isinstance(decoder, CountsTargets):
        return
    texts, length = inputs.tokens.ids.shape
    nothing = Encoded(bottleneck=torch.zeros(texts, 0), hidden=torch.zeros(texts, length, 0))
    with running(title, "counting its targets"):
        counted = decoder.targets(attrs.evolve(inputs, encoded=nothing))
    for key, value in require_outputs(counted, title, frozenset()).items():
        require(key in out, f"{title}: targets(..) has {key}, which its output lacks")
        if isinstance(value, TokenStates):
            same = isinstance(out[key], TokenStates) and torch.equal(value.labels, out[key].labels)
            require(same, f"{title}: the labels of {key} from targets(..) are not those of its output")
        else:
            mine, theirs = len(value), len(out[key])
            require(mine == theirs, f"{title}: targets(..) counts {mine} of {key}, and its output has {theirs}")


def _are_within(labels: Tensor, tokens: Tensor) -> bool:
    """Return whether labels i64[N] are some of the tokens i64[M], in their order."""
    left = iter(tokens.tolist())
    return all(label in left for label in labels.tolist())


def _check_start(spec: ComponentSpec, config: Any, decoder: nn.Module, encoder: MaskedLmEncoder) -> None:
    before = torch.get_rng_state()
    again = _build(spec, config, encoder).state_dict()
    require(torch.equal(before, torch.get_rng_state()), f"{spec.name}: building it draws from the global generator")
    same = all(torch.equal(value, again[key]) for key, value in decoder.state_dict().items())
    require(same, f"{spec.name}: the same seed gives different weights")


def _check_gradient(spec: ComponentSpec, decoder: Any, encoder: MaskedLmEncoder) -> None:
    inputs = _inputs(spec, decoder, encoder)
    out = decoder.train()(inputs, encoder.heads())
    decoder.eval()
    if not out:
        require(not [*decoder.parameters()], f"{spec.name}: provides nothing, but has weights")
        return
    check_decoder_gradients(spec.name, out, inputs, decoder, also=[*encoder.parameters()], receives=spec.receives)


def check_decoder_gradients(
    title: str,
    out: Mapping[str, Any],
    inputs: DecoderInput,
    decoder: nn.Module,
    also: Sequence[Tensor] = (),
    *,
    receives: Iterable[str] = (),
) -> None:
    """Check that outputs send gradient into the bottleneck and every weight of the decoder; see `check_gradients`.

    receives: what its spec receives; with `hidden`, the gradient may reach the encoder's states instead, with named
    vectors, these.
    """
    pieces = [piece for value in out.values() if (piece := scalar_of(value)) is not None]
    require(pieces, f"{title}: none of its outputs carries a gradient; do not detach what the decoder computes")
    total = torch.stack(pieces).sum()
    read, what = [inputs.encoded.bottleneck], "the bottleneck"
    if names := vector_names(receives):
        read, what = [inputs.encoded.vectors[name] for name in names], f"the vector {' or '.join(names)}"
    if "hidden" in receives:
        read, what = [inputs.encoded.hidden], "the encoder's states"
    check_gradients(title, total, read, decoder, what=what, also=also)


def check_gradients(
    title: str,
    value: Tensor,
    inputs: Sequence[Tensor],
    module: Any,
    *,
    what: str = "its inputs",
    also: Sequence[Tensor] = (),
) -> None:
    """Check the gradient of a scalar: it is finite, and reaches one of `inputs` and every weight of `module`.

    It may be zero at the start for some of them, as behind a weight that starts from zero, but not for all. what: the
    inputs, in words. also: tensors that it need not reach. There is only one backward pass, because torch's fused
    cross-entropy allows no second one. Raises ContractError, with `title` first.
    """
    named = module.named_parameters() if isinstance(module, nn.Module) else ()
    weights = {name: weight for name, weight in named if weight.requires_grad}
    found = torch.autograd.grad(value, [*inputs, *weights.values(), *also], allow_unused=True)
    reached, own = found[: len(inputs)], found[len(inputs) : len(inputs) + len(weights)]
    is_reached = any(gradient is not None for gradient in reached)
    is_zero = not any(gradient is not None and bool(gradient.any()) for gradient in (*reached, *own))
    require(is_reached and not is_zero, f"{title}: no gradient reaches {what}")
    finite = all(gradient is None or bool(gradient.isfinite().all()) for gradient in found)
    require(finite, f"{title}: a gradient of the loss is nan or infinite, expected finite numbers")
    idle = [name for name, gradient in zip(weights, own, strict=True) if gradient is None]
    require(
        not idle,
        f"{title}: no gradient reaches its own weights {', '.join(idle)}; use them, or set requires_grad to False",
    )
