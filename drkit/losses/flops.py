"""A penalty that makes vectors of word scores sparse, beside any loss over pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from drkit.core.protocols import Loss
from drkit.core.registry import registry_of
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.losses.candidates import check_pairs
from drkit.losses.specs import FlopsConfig


class FlopsLoss(nn.Module):
    """`L + queries * F(query vectors) + passages * F(passage vectors)`, `F = sum_v (mean over rows i of |w_iv|)^2`.

    | input | shape | what |
    |---|---|---|
    | pairs | as L takes them | queries f[Q,V] and passages f[P,V] of `lexical`; with `dense`, [..,D+V] |

    F is the expected number of products in a search by an inverted index, smoothed: words that many texts have cost
    most. In the first `warmup` batches both weights grow with the square of the batch's number, which is saved in
    checkpoints. Metrics: those of L, `flops_queries`, `flops_passages`, and `words_queries`, `words_passages`: how many
    words a vector has.

    V is the vocabulary of the context's backbone (without one: all of a vector), so F leaves out what `dense` puts
    before the scores. loss: L, instead of the one in the settings; it is called as L(pairs=pairs).

    Source: Paria et al. 2020, equation 4; SPLADE (Formal et al. 2021), equation 4, and its schedule.

    >>> import torch
    >>> from drkit.losses import ContrastiveConfig, ContrastiveLoss
    >>> pairs = EmbeddedPairs(queries=torch.eye(2), passages=torch.eye(3)[:, :2], positives=torch.tensor([0, 1]))
    >>> inner = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot"))
    >>> out = FlopsLoss(FlopsConfig(queries=2.0, passages=0.0), loss=inner)(pairs=pairs)
    >>> round((out.loss - inner(pairs=pairs).loss).item(), 4), out.metrics["words_queries"].item()  # 2 * (1/4 + 1/4)
    (1.0, 1.0)
    """

    batches: Tensor

    def __init__(
        self, config: FlopsConfig | None = None, context: BuildContext | None = None, *, loss: Loss | None = None
    ) -> None:
        super().__init__()
        self.config = FlopsConfig() if config is None else config
        chosen = self.config.loss
        self.loss: Loss = loss or registry_of(context).build(Kind.LOSS, chosen.use, chosen.config, context)
        self._words = context.backbone.vocab if context and context.backbone else 0  # 0: all numbers of a vector
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if the shapes do not fit each other."""
        check_pairs(pairs)
        step = self.loss(pairs=pairs)
        if self.training:
            self.batches += 1
        grown = (self.batches / self.config.warmup).clamp(max=1).square() if self.config.warmup else 1.0
        loss, metrics = step.loss, dict(step.metrics)
        for name, vectors in (("queries", pairs.queries), ("passages", pairs.passages)):
            rows = vectors[:, -self._words :]
            flops = rows.float().abs().mean(0).square().sum()
            loss = loss + getattr(self.config, name) * grown * flops
            metrics |= {f"flops_{name}": flops.detach(), f"words_{name}": (rows != 0).sum(1).float().mean()}
        return StepOutput(loss=loss, metrics=metrics)
