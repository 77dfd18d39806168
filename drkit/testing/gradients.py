"""Where the gradient of what a part computes must arrive, for the contract and for the trial of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drkit.testing.specs import require


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
