"""The contract of a loss: a finite scalar with a gradient, from data alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from drkit.core.spec import ComponentSpec, Kind, keyword
from drkit.core.types import StepOutput, TextStates, TokenStates
from drkit.testing.specs import check_spec, require, signal_scopes, spec_of
from drkit.testing.toys import VOCAB, rows_of, toy_context, toy_encoder, toy_groups, toy_pairs, toy_tokens, with_signals


def check_loss(part: ComponentSpec | str, config: Any = None, inputs: dict[str, Any] | None = None) -> None:
    """Run the loss contract on a spec or the name of an installed part, with default settings or `config`.

    Inputs are made for `token_states`, `text_states`, `bottleneck`, `vocab_logits`, `words`, `replaced_logits`,
    `replaced`, `partners`, `pairs` (with a teacher), `groups`, and its signals of tokens and texts; pass `inputs` for
    others, or to add to them. The loss must be a finite scalar, the same each time; gradient must reach its inputs;
    metrics must not carry gradient.
    """
    spec = spec_of(Kind.LOSS, part)
    check_spec(spec)
    settings = spec.config() if config is None else config
    needs = spec.receives_of(settings)
    made = {need: _TOYS[need]() for need in needs if need in _TOYS}
    given = {**made, **_signals(signal_scopes(spec, settings), needs), **(inputs or {})}
    unknown = needs - set(given)
    require(not unknown, f"{spec.name}: pass check_loss inputs for {', '.join(sorted(unknown))}")
    loss = spec.load()(settings, toy_context())
    out = loss(**given)
    require(isinstance(out, StepOutput), f"{spec.name}: a loss must return StepOutput, got {type(out).__name__}")
    require(out.loss.shape == (), f"{spec.name}: the loss has shape {tuple(out.loss.shape)}, expected a scalar")
    require(bool(out.loss.isfinite()), f"{spec.name}: the loss is {out.loss.item()}")
    require(torch.equal(out.loss, loss(**given).loss), f"{spec.name}: a second call gives a different loss")
    for name, value in out.metrics.items():
        plain = isinstance(value, Tensor) and value.shape == () and not value.requires_grad
        require(plain, f"{spec.name}: the metric {name!r} is not a detached scalar tensor")
    out.loss.backward()
    gradients = [leaf.grad for leaf in _leaves(given)]
    reached = [g for g in gradients if g is not None and bool(g.any())]
    require(reached, f"{spec.name}: no gradient reaches its inputs")
    require(all(bool(g.isfinite().all()) for g in reached), f"{spec.name}: a gradient is not finite")


def _signals(scopes: Mapping[str, str], needs: Iterable[str]) -> dict[str, Tensor]:
    """Return toy signals of the texts that the other inputs belong to, by the loss's keywords."""
    tokens = toy_tokens()
    if not {"token_states", "text_states"} & set(needs):
        tokens = rows_of(tokens, range(ROWS))
    carried = {name for name, scope in scopes.items() if scope != "vocabulary"}
    return {keyword(n): v for n, v in with_signals(tokens, scopes).signals.items() if n in carried}


def _token_states() -> TokenStates:
    tokens = toy_tokens()
    labels = tokens.ids[tokens.maskable]
    return TokenStates(states=_normal(5, len(labels), 16), labels=labels, heads=toy_encoder().heads())


def _text_states() -> TextStates:
    tokens = toy_tokens()
    return TextStates(states=_normal(5, *tokens.ids.shape, 16), tokens=tokens, heads=toy_encoder().heads())


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def _flags(seed: int, share: float, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


def _targets() -> int:
    return int(toy_tokens().maskable.sum())


ROWS = 6
_TOYS: dict[str, Callable[[], Any]] = {
    "token_states": _token_states,
    "text_states": _text_states,
    "bottleneck": lambda: _normal(6, ROWS, 16),
    "vocab_logits": lambda: _normal(7, ROWS, VOCAB),
    "words": lambda: _flags(8, 0.2, ROWS, VOCAB),
    "replaced_logits": lambda: _normal(9, _targets()),
    "replaced": lambda: _flags(10, 0.3, _targets()),
    "partners": lambda: (torch.arange(ROWS) + ROWS // 2) % ROWS,
    "pairs": toy_pairs,
    "groups": toy_groups,
}


# Fields of bundles that may receive gradient.
_LEARNED = ("states", "queries", "passages", "scores")


def _leaves(given: dict[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in given.values():
        if isinstance(value, Tensor):
            found.append(value)
        else:
            found += [v for v in (getattr(value, n, None) for n in _LEARNED) if v is not None]
    return [tensor for tensor in found if tensor.requires_grad]
