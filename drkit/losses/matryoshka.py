"""Train the prefixes of a vector as vectors of their own, so that an index may store fewer numbers per passage."""

from __future__ import annotations

import attrs
import torch
from torch import nn

from drkit.core.protocols import Loss
from drkit.core.registry import registry_of
from drkit.core.spec import Kind
from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.errors import DrkitError
from drkit.losses.candidates import check_pairs
from drkit.losses.specs import MatryoshkaConfig

_SHORTEST = 8


class MatryoshkaLoss(nn.Module):
    """The sum over lengths m of L(the first m numbers of every vector), L any loss over pairs.

    | input | shape | what |
    |---|---|---|
    | pairs | as L takes them | queries f[Q,D] and passages f[P,D] are cut, all else is passed on |

    The lengths are D and the `dimensions`, or D, D/2, D/4 .. down to 8 if none are set. A loss with cosine similarity
    normalises each prefix. Memory: that of L, once per length. Metrics: those of L on whole vectors, and those of the
    prefixes of length M with the suffix `_M`. `drkit export --dimension M` makes an encoder of such prefixes.

    loss: L, instead of the one in the settings; it is called as L(pairs=pairs).

    Source: Kusupati et al. 2022, equation 1 with all weights c_m = 1.

    >>> import torch
    >>> from drkit.losses import ContrastiveConfig, ContrastiveLoss
    >>> queries, passages = torch.eye(2, 4), torch.eye(3, 4)
    >>> pairs = EmbeddedPairs(queries=queries, passages=passages, positives=torch.tensor([0, 1]))
    >>> inner = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot"))
    >>> loss = MatryoshkaLoss(MatryoshkaConfig(dimensions=(2,)), loss=inner)
    >>> whole, out = inner(pairs=pairs), loss(pairs=pairs)
    >>> bool(torch.isclose(out.loss, 2 * whole.loss)), sorted(out.metrics)  # the last two numbers are 0
    (True, ['accuracy', 'accuracy_2'])
    """

    def __init__(
        self, config: MatryoshkaConfig | None = None, context: BuildContext | None = None, *, loss: Loss | None = None
    ) -> None:
        super().__init__()
        self.config = MatryoshkaConfig() if config is None else config
        chosen = self.config.loss
        self.loss: Loss = loss or registry_of(context).build(Kind.LOSS, chosen.use, chosen.config, context)

    def forward(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError for a prefix that is not shorter than the vectors."""
        check_pairs(pairs)
        whole = self.loss(pairs=pairs)
        losses, metrics = [whole.loss], dict(whole.metrics)
        for length in prefix_lengths(pairs.queries.shape[1], self.config.dimensions):
            cut = attrs.evolve(pairs, queries=pairs.queries[:, :length], passages=pairs.passages[:, :length])
            step = self.loss(pairs=cut)
            losses.append(step.loss)
            metrics |= {f"{name}_{length}": value for name, value in step.metrics.items()}
        return StepOutput(loss=torch.stack(losses).sum(), metrics=metrics)


def prefix_lengths(dimension: int, chosen: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Return the lengths of the prefixes of vectors of `dimension` numbers, longest first.

    Raises DrkitError if a chosen one is not shorter than the vectors.

    >>> prefix_lengths(256), prefix_lengths(100, (16, 64))
    ((128, 64, 32, 16, 8), (64, 16))
    """
    if too_long := [length for length in chosen if length >= dimension]:
        raise DrkitError(
            f"matryoshka trains prefixes of the vectors, which have {dimension} numbers, but 'dimensions' has "
            f"{too_long[0]}; use lengths below {dimension}, for the whole vector is always trained"
        )
    if chosen:
        return tuple(sorted(chosen, reverse=True))
    return tuple(dimension >> power for power in range(1, dimension.bit_length()) if dimension >> power >= _SHORTEST)
