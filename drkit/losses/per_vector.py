"""A loss of each named vector of a pooling, beside that of their sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drkit.core.protocols import Loss
from drkit.core.registry import registry_of
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.losses.candidates import check_pairs
from drkit.losses.specs import SUM, PerVectorConfig


class PerVectorLoss(nn.Module):
    """`sum over v of w_v * L(vectors v)`, with v the named vectors of a pooling, or `sum`: what search scores by.

    | input | shape | what |
    |---|---|---|
    | pairs | as L takes them | vectors of a pooling that gives several, joined |

    L gets the pairs with the vector v alone (`EmbeddedPairs.vector`), or, for `sum`, as they are. Metrics: those of L
    with the suffix `_v`. Memory: that of L, once per weight.

    loss: L, instead of the one in the settings; it is called as L(pairs=pairs).

    >>> import torch
    >>> from drkit.core.types import Section
    >>> from drkit.losses import ContrastiveConfig, ContrastiveLoss
    >>> sections = {"dense": Section(0, 2), "lexical": Section(2, 4)}
    >>> pairs = EmbeddedPairs(torch.eye(2, 4), torch.eye(2, 4), torch.tensor([0, 1]), sections=sections)
    >>> inner = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot"))
    >>> loss = PerVectorLoss(PerVectorConfig(weights={"dense": 0.5}), loss=inner)
    >>> bool(loss(pairs=pairs).loss == 0.5 * inner(pairs=pairs.vector("dense")).loss)
    True
    """

    def __init__(
        self, config: PerVectorConfig | None = None, context: BuildContext | None = None, *, loss: Loss | None = None
    ) -> None:
        super().__init__()
        self.config = PerVectorConfig() if config is None else config
        chosen = self.config.loss
        self.loss: Loss = loss or registry_of(context).build(Kind.LOSS, chosen.use, chosen.config, context)

    def forward(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError for a vector that the pooling does not give."""
        check_pairs(pairs)
        losses: list[Tensor] = []
        metrics: dict[str, Tensor] = {}
        for name, weight in self.config.weights.items():
            step = self.loss(pairs=pairs if name == SUM else pairs.vector(name))
            losses.append(weight * step.loss)
            metrics |= {f"{metric}_{name}": value for metric, value in step.metrics.items()}
        return StepOutput(loss=torch.stack(losses).sum(), metrics=metrics)
