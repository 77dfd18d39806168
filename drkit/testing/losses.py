"""The contract of a loss: a finite scalar with a gradient, from data alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import attrs
import torch
from torch import Tensor

from drkit.core.protocols import CountsItems, ReadsVectors
from drkit.core.registry import installed
from drkit.core.spec import PAIRS, TEACHER, ComponentSpec, Kind, keyword, vector_name, vector_names
from drkit.core.types import EmbeddedPairs, Section, StepOutput, TextStates, TokenBatch, TokenStates
from drkit.data.values import PAIR, PASSAGE
from drkit.recipe.parts import columns_of
from drkit.testing.data import toy_signals
from drkit.testing.decoders import check_gradients, toy_outputs
from drkit.testing.specs import build, checked_spec, pickled, require, running
from drkit.testing.toys import (
    TEACHER_SIZE,
    VOCAB,
    rows_of,
    toy_context,
    toy_encoder,
    toy_groups,
    toy_pairs,
    toy_tokens,
    with_signals,
)

_ROWS = 8  # texts of `toy_tokens`
# Numbers of a toy bottleneck.
_WIDTH = 16


def check_loss(
    part: ComponentSpec | str,
    config: Any = None,
    inputs: dict[str, Any] | None = None,
    decoder: ComponentSpec | str | None = None,
    columns: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run the loss contract on a spec or the name of an installed part, with default settings or `config`.

    Inputs are made for `token_states`, `text_states`, `bottleneck`, named vectors, `vocab_logits`, `words`, `replaced`,
    `partners`, `pairs` with the columns that it receives, `groups`, and its signals of tokens and texts. columns: what
    a column has a value for, `query`, `passage` or `pair` (the default). Names of its own are taken from what `decoder`
    makes of the toy texts; without it, from an installed decoder that provides them. Pass `inputs` to set any by hand.

    The loss must be a finite scalar, the same each time, also for a batch of one; finite gradient must reach its inputs
    and every weight of its own (`check_gradients`); metrics must not carry gradient; with scope `rows`, the loss of a
    batch is the mean of its parts' losses, weighted by their rows or by its own `items`; it can be pickled. Columns
    have random numbers, or the values in the spec's `example`.
    """
    spec, settings = checked_spec(Kind.LOSS, part, config)
    declared = settings.vector_columns if isinstance(settings, ReadsVectors) else {}
    vectors = dict.fromkeys(declared, TEACHER_SIZE)
    read = {name: size[0] for name, (_, size) in toy_signals(spec, settings).items() if size}
    sizes = {
        **vectors,
        **read,
        "bottleneck": toy_pairs().queries.shape[1] if PAIRS in spec.receives_of(settings) else _WIDTH,
    }
    loss = build(spec, settings, attrs.evolve(toy_context(), vector_sizes=sizes))
    columns = {**dict.fromkeys((TEACHER, *columns_of(spec, settings)), PAIR), **declared, **columns}
    make = functools.partial(_inputs, spec, settings, decoder, inputs or {}, columns, vectors)
    given = make(range(_ROWS))
    out = _call(loss, given, f"{spec.name}: the loss of a batch")
    _check_metrics(out, spec.name)
    again = _call(loss, given, f"{spec.name}: a second call")
    require(torch.equal(out.loss, again.loss), f"{spec.name}: a second call gives a different loss")
    check_loss_gradients(spec.name, out.loss, learned_tensors(given), loss)
    if not inputs:
        one = range(2 if "partners" in given else 1)  # a text and its partner are two rows
        _call(loss, make(one), f"{spec.name}: the loss of a batch of one")
        if spec.scope_of(settings) == "rows" and "groups" not in given:
            _check_rows(spec.name, loss, make, float(out.loss.detach()))
    thawed = _call(pickled(spec.name, loss), given, spec.name)
    require(torch.equal(out.loss, thawed.loss), f"{spec.name}: pickling changes the loss")


def _call(loss: Any, given: Mapping[str, Any], name: str) -> StepOutput:
    with running(name, f"calling it with {', '.join(sorted(given))}"):
        out = loss(**given)
    return check_step_output(out, name)


def check_step_output(step: Any, name: str) -> StepOutput:
    """Return what a loss returned; raises ContractError unless it is a StepOutput with a finite scalar."""
    require(isinstance(step, StepOutput), f"{name}: expected StepOutput(loss=..), got {type(step).__name__}")
    assert isinstance(step, StepOutput)
    require(isinstance(step.loss, Tensor), f"{name} must be a tensor, got {type(step.loss).__name__}")
    require(step.loss.shape == (), f"{name} has shape {tuple(step.loss.shape)}, expected a scalar")
    require(bool(step.loss.isfinite()), f"{name} is {step.loss.item()}, expected a finite number")
    return step


def _check_metrics(out: StepOutput, name: str) -> None:
    for metric, value in out.metrics.items():
        plain = isinstance(value, Tensor) and value.shape == () and not value.requires_grad
        require(plain, f"{name}: the metric {metric!r} is not a detached scalar tensor")


def check_loss_gradients(name: str, value: Tensor, learned: Sequence[Tensor], loss: Any) -> None:
    """Check that the value of a loss sends gradient into the tensors `learned` and into its own weights."""
    require(
        value.requires_grad,
        f"{name}: the loss carries no gradient, so no gradient reaches its inputs; do not detach what it computes",
    )
    check_gradients(name, value, learned, loss)


def _check_rows(name: str, loss: Any, make: Callable[[Sequence[int]], dict[str, Any]], whole: float) -> None:
    """Check that the loss can be computed in chunks, as the scope `rows` declares."""
    total, count = 0.0, 0.0
    for rows in (range(3), range(3, _ROWS)):
        given = make(rows)
        items = float(loss.items(**given)) if isinstance(loss, CountsItems) else len(rows)
        total += items * float(_call(loss, given, f"{name}: the loss of {len(rows)} rows").loss.detach())
        count += items
    mean = total / count
    message = (
        f"{name}: its scope is 'rows', but the loss of a batch is {whole:.4g} and the mean of its parts is {mean:.4g}; "
        f"set scope='batch' if it compares rows, or count what it is a mean of with `items` (CountsItems)"
    )
    require(abs(whole - mean) <= 1e-4 * max(1.0, abs(whole)), message)


def _inputs(
    spec: ComponentSpec,
    settings: Any,
    decoder: ComponentSpec | str | None,
    own: dict[str, Any],
    columns: Mapping[str, str],
    vectors: Mapping[str, int],
    rows: Sequence[int],
) -> dict[str, Any]:
    """Return toy arguments of a loss for some of the toy texts; partners, pairs and groups are of a batch of `rows`."""
    needs, signals_read = spec.receives_of(settings), toy_signals(spec, settings)
    tokens = rows_of(with_signals(toy_tokens(), signals_read), rows)
    if PAIRS in needs:
        values = {name: given for name, given in spec.example.items() if name in columns}
        pairs = _pairs(len(tokens.ids), columns, values, vectors)
        return {PAIRS: _with_sections(pairs, vector_names(needs)), **own}
    made = {need: _TOYS[need](tokens) for need in needs if need in _TOYS}
    named = {*map(vector_name, vector_names(needs))}
    made |= {keyword(need): _TOYS["bottleneck"](tokens) for need in named}
    needs = needs - named
    signals = {keyword(name): value for name, value in tokens.signals.items()}
    if unknown := needs - {*made, *signals, *own}:
        provider = decoder or _provider(unknown)
        require(provider is not None, f"{spec.name}: pass check_loss inputs for {', '.join(sorted(unknown))}")
        assert provider is not None
        outputs = toy_outputs(provider, rows)
        missing = sorted(unknown - set(outputs))
        require(not missing, f"{spec.name}: the decoder {provider} does not provide {', '.join(missing)}")
        made |= {name: outputs[name] for name in unknown}
    return {**made, **signals, **own}


def _with_sections(pairs: EmbeddedPairs, names: Sequence[str]) -> EmbeddedPairs:
    """Return pairs whose vectors are joined of as many named ones, of nearly the same length."""
    length = pairs.queries.shape[1]
    starts = [length * index // len(names) for index in range(len(names) + 1)] if names else []
    sections = {name: Section(*ends) for name, ends in zip(names, pairwise(starts), strict=True)} if names else {}
    return attrs.evolve(pairs, sections=sections)


def _provider(names: frozenset[str]) -> ComponentSpec | None:
    """Return an installed decoder whose spec provides all of these names."""
    registry = installed().registry
    decoders = (registry.get(Kind.DECODER, name) for name in registry.names(Kind.DECODER))
    return next((spec for spec in decoders if names <= spec.provides_of(spec.config())), None)


def _token_states(tokens: TokenBatch) -> TokenStates:
    labels = tokens.ids[tokens.maskable]
    return TokenStates(states=_leaf(_values(tokens, 16)[tokens.maskable]), labels=labels, heads=toy_encoder().heads())


def _text_states(tokens: TokenBatch) -> TextStates:
    return TextStates(states=_leaf(_values(tokens, 16)), tokens=tokens, heads=toy_encoder().heads())


def _values(tokens: TokenBatch, width: int) -> Tensor:
    """Return f32[B,L,width] that differ by text, position and channel, and do not depend on the other texts."""
    length = tokens.ids.shape[1]
    steps = torch.arange(length * width).reshape(length, width) * 0.7311
    return torch.sin(3.0 * steps + tokens.keys[:, None, None] * 0.0173)


def _leaf(values: Tensor) -> Tensor:
    return values.clone().requires_grad_()


def _pairs(
    rows: int, columns: Mapping[str, str], values: Mapping[str, Sequence[float]], vectors: Mapping[str, int]
) -> Any:
    pairs = toy_pairs(columns=columns, values=values, vectors=vectors)
    if rows == _ROWS:
        return pairs
    some = slice(rows)
    names = ("queries", "positives", "candidates", "groups", "query_ids")
    cut: dict[str, Any] = {name: _cut(getattr(pairs, name), some) for name in names}
    own = {name: value if columns[name] == PASSAGE else value[some] for name, value in pairs.columns.items()}
    return attrs.evolve(pairs, **cut, columns=own)


def _groups(tokens: TokenBatch) -> Any:
    groups = toy_groups()
    if len(tokens.ids) == _ROWS:
        return groups
    some = slice(len(tokens.ids))
    columns = {name: value[some] for name, value in groups.columns.items()}
    return attrs.evolve(groups, scores=_cut(groups.scores, some), mask=groups.mask[some], columns=columns)


def _cut(values: Tensor, some: slice) -> Tensor:
    return _leaf(values.detach()[some]) if values.is_floating_point() else values[some]


_TOYS: dict[str, Callable[[TokenBatch], Any]] = {
    "token_states": _token_states,
    "preceding_states": _token_states,
    "ratios": lambda tokens: (0.1 + 0.8 * _values(tokens, 2)[:, :1, 1].abs()).expand_as(tokens.ids)[tokens.maskable],
    "text_states": _text_states,
    "bottleneck": lambda tokens: _leaf(_values(tokens, 16)[:, 0]),
    "vocab_logits": lambda tokens: _leaf(_values(tokens, VOCAB)[:, 1]),
    "words": lambda tokens: _values(tokens, VOCAB)[:, 2] > 0.8,
    "replaced": lambda tokens: _values(tokens, 2)[..., 1][tokens.maskable] > 0.5,
    "partners": lambda tokens: torch.arange(len(tokens.ids)).roll(len(tokens.ids) // 2),
    "groups": _groups,
}


# Fields of bundles that may receive gradient.
_LEARNED = ("states", "queries", "passages", "scores")


def learned_tensors(given: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among a loss's inputs that require gradients."""
    found: list[Tensor] = []
    for value in given.values():
        if isinstance(value, Tensor):
            found.append(value)
        else:
            found += [v for v in (getattr(value, n, None) for n in _LEARNED) if v is not None]
    return [tensor for tensor in found if tensor.requires_grad]
