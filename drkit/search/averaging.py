"""Average the weights of encoders that were trained from the same start: one encoder, as fast as each of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from drkit.encoders.identity import config_hash, tokenizer_hash
from drkit.errors import DrkitError
from drkit.search.dual_encoder import AnyEncoder, DualEncoder
from drkit.search.text_encoder import TextEncoder

_SIDES = ("queries", "passages")


def average_encoders(encoders: Sequence[AnyEncoder], weights: Sequence[float] | None = None) -> AnyEncoder:
    """Return an encoder whose weights are the means of those of several encoders, computed in float64.

    weights: of each encoder in the means; None: all alike. Numbers that are not floats must be the same in all. Of two
    encoders, those of queries and those of passages are averaged among themselves.

    Raises DrkitError unless the encoders have the same configuration, shapes, tokenizer and card, or for weights that
    are not a positive number for each.

    Source: Wortsman et al. 2022, Model soups, the uniform soup.
    """
    if len(encoders) < 2:
        raise DrkitError(f"an average needs at least 2 encoders, got {len(encoders)}")
    shares = [1.0] * len(encoders) if weights is None else [*map(float, weights)]
    if len(shares) != len(encoders) or not all(0 < share < float("inf") for share in shares):
        raise DrkitError(f"expected a positive weight for each of the {len(encoders)} encoders, got {weights}")
    shares = [share / sum(shares) for share in shares]
    if not any(isinstance(one, DualEncoder) for one in encoders):
        return _averaged([one for one in encoders if isinstance(one, TextEncoder)], shares, "encoder")
    if not all(isinstance(one, DualEncoder) for one in encoders):
        raise DrkitError("cannot average one encoder for queries and passages with two separate encoders")
    sides = [_averaged([getattr(one, side) for one in encoders], shares, f"encoder of {side}") for side in _SIDES]
    return DualEncoder(*sides)


def _averaged(encoders: Sequence[TextEncoder], shares: Sequence[float], what: str) -> TextEncoder:
    first = encoders[0]
    for number, other in enumerate(encoders[1:], 2):
        if reason := _difference(first, other):
            raise DrkitError(f"cannot average: the {what} number {number} has {reason} than the first")
    modules = {
        name: _mean_module([getattr(one, name) for one in encoders], shares)
        for name in ("model", "token_weights", "learned_pooling")
    }
    return attrs.evolve(first, **modules)


def _difference(one: TextEncoder, other: TextEncoder) -> str:
    """Return what keeps two encoders from being averaged, or nothing."""
    if tokenizer_hash(one.tokenizer) != tokenizer_hash(other.tokenizer):
        return "another tokenizer"
    cards = (attrs.asdict(one.card), attrs.asdict(other.card))
    if different := [name for name in cards[0] if cards[0][name] != cards[1][name]]:
        return f"another {different[0]} ({cards[1][different[0]]!r}, not {cards[0][different[0]]!r})"
    mine, theirs = _shapes(one), _shapes(other)
    if names := [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]:
        return f"other weights ({names[0]}: {theirs.get(names[0], 'missing')}, not {mine.get(names[0], 'missing')})"
    return "another configuration" if config_hash(one.model.config) != config_hash(other.model.config) else ""


def _shapes(encoder: TextEncoder) -> dict[str, tuple[int, ...]]:
    modules = {"": encoder.model, "token weights ": encoder.token_weights, "pooling ": encoder.learned_pooling}
    return {
        f"{prefix}{name}": tuple(value.shape)
        for prefix, module in modules.items()
        if module is not None
        for name, value in module.state_dict().items()
    }


def _mean_module(modules: Sequence[nn.Module | None], shares: Sequence[float]) -> Any:
    """Return a copy of the first module with the means of all; None if there is none."""
    if modules[0] is None:
        return None
    states = [module.state_dict() for module in modules if module is not None]
    made = copy.deepcopy(modules[0])
    made.load_state_dict({name: _mean(name, [state[name] for state in states], shares) for name in states[0]})
    return made


def _mean(name: str, values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    first = values[0]
    if not first.is_floating_point():
        if any(not torch.equal(first, other.to(first.device)) for other in values[1:]):
            raise DrkitError(f"cannot average {name}: it has whole numbers that differ")
        return first
    total = torch.stack([share * value.double().cpu() for share, value in zip(shares, values, strict=True)]).sum(0)
    return total.to(first)
