"""Weigh negatives by how hard they are: the closer to the query, the more each counts in the softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.losses.candidates import check_groups, check_pairs, products, vectors
from drkit.losses.contrastive import contrast
from drkit.losses.distillation import own_negatives
from drkit.losses.specs import HardnessConfig


class HardnessLoss:
    """`ContrastiveLoss` in which a negative p of query q weighs exp(strength x s(q, p)), a constant for the gradient.

    | input | shape | what |
    |---|---|---|
    | pairs.queries, passages, positives | f[Q,D], f[P,D], i64[Q] | as `ContrastiveLoss` takes them |
    | pairs.groups | i64[Q,G] | each query's own passages; not read if `negatives` is `all` |
    | pairs.candidates, numbers, sharing | or None | as `ContrastiveLoss` takes them |

    s is cosine or dot product. `negatives` says which are weighed: `all`, those in the `batch` (of other queries), or
    the query's own `hard` ones. The positive is not. Metrics: `accuracy`, as in `ContrastiveLoss`.

    Source: LLaVE (Lan et al. 2025), equation 5: `batch`, strength 9; EmbeddingGemma (Schechter Vera et al. 2025):
    `hard`, strength 5.
    """

    def __init__(self, config: HardnessConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = HardnessConfig() if config is None else config

    def __call__(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if the shapes do not fit, or without groups."""
        check_pairs(pairs)
        queries, passages = vectors(pairs, self.config.similarity)
        penalty = self.config.strength * products(queries.detach(), passages.detach())
        loss, accuracy = contrast(pairs, self.config, added=torch.where(self._weighed(pairs), penalty, 0))
        return StepOutput(loss=loss, metrics={"accuracy": accuracy})

    def _weighed(self, pairs: EmbeddedPairs) -> Tensor:
        """Return which passages are weighed for each query, bool[Q,P]."""
        every = torch.ones(len(pairs.queries), len(pairs.passages), dtype=torch.bool, device=pairs.queries.device)
        if self.config.negatives != "all":
            check_groups(pairs)
            own = own_negatives(pairs)
            every = own if self.config.negatives == "hard" else ~own
        return every.scatter(1, pairs.positives[:, None], False)
