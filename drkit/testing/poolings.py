"""The contract of a pooling: one vector for each text, whatever the padding, and a gradient for every weight."""

from __future__ import annotations

from typing import Any

import torch

from drkit.core.spec import ComponentSpec, Kind
from drkit.testing.specs import build, check_spec, require, running, spec_of
from drkit.testing.toys import toy_context, toy_encoder, toy_tokens

PADDING = 5


def check_pooling(part: ComponentSpec | str, config: Any = None) -> None:
    """Run the pooling contract on a spec or the name of an installed part, with default settings or `config`.

    The part must be a module that turns hidden states f[B,L,D] and attention bool[B,L], and the LM head if its spec
    receives `heads`, into finite vectors f[B,dimension] (D without a `dimension`); the same each time, whatever the
    states of the padding, for a text alone as in a batch; gradient must reach every text and every weight of its own.
    """
    spec = spec_of(Kind.POOLING, part)
    check_spec(spec)
    context = toy_context()
    assert context.backbone is not None
    pooling = build(spec, spec.config() if config is None else config, context)
    require(isinstance(pooling, torch.nn.Module), f"{spec.name}: expected an nn.Module, got {type(pooling).__name__}")
    attention = toy_tokens().attention
    draws = torch.Generator().manual_seed(0)
    heads = [toy_encoder().heads()] if "heads" in spec.receives else []
    hidden = torch.randn(*attention.shape, context.backbone.hidden, generator=draws, requires_grad=True)
    with running(spec.name, "calling it with hidden states and attention"):
        vectors = pooling(hidden, attention, *heads)
        again = pooling(hidden, attention, *heads)
        padded = torch.nn.functional.pad(hidden, (0, 0, 0, PADDING), value=7.0)
        wide = pooling(padded, torch.nn.functional.pad(attention, (0, PADDING)), *heads)
        alone = pooling(hidden[-1:], attention[-1:], *heads)
    expected = (len(attention), int(getattr(pooling, "dimension", context.backbone.hidden)))
    shape = tuple(vectors.shape)
    require(shape == expected, f"{spec.name}: vectors of shape {shape}, expected {expected} (texts, dimension)")
    require(bool(vectors.isfinite().all()), f"{spec.name}: some numbers of the vectors are not finite")
    require(torch.equal(vectors, again), f"{spec.name}: a second call gives other vectors")
    for what, found, wanted in (("the padding", wide, vectors), ("the other texts", alone, vectors[-1:])):
        require(torch.allclose(found, wanted, atol=1e-5), f"{spec.name}: a text's vector depends on {what}")
    vectors.square().sum().backward()
    assert hidden.grad is not None
    require(bool((hidden.grad != 0).flatten(1).any(1).all()), f"{spec.name}: no gradient reaches the states of a text")
    idle = [name for name, weight in pooling.named_parameters() if weight.grad is None or not weight.grad.any()]
    require(not idle, f"{spec.name}: no gradient reaches the weight {', '.join(idle)}")
