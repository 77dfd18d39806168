"""Score a query's positive above each of its own negatives, one pair at a time."""

from __future__ import annotations

import torch.nn.functional as F

from drkit.core.types import BuildContext, EmbeddedPairs, StepOutput
from drkit.losses.candidates import accuracy, mean_over, own_passages, own_scores
from drkit.losses.specs import PairwiseConfig


class PairwiseLoss:
    """The mean over queries q and their own negatives p- of softplus( (s(q, p-) - s(q, p+)) / t ).

    | input | shape | what |
    |---|---|---|
    | pairs.queries, passages | f[Q,D], f[P,D] | vectors |
    | pairs.groups | i64[Q,G] | rows of each query's own passages, its positive first, padded with -1 |
    | pairs.candidates, numbers | bool[Q,P], i64[P], or None | allowed negatives; copies of one passage |

    s is dot product or cosine, t the temperature. Other queries' passages play no part; a judged positive or a second
    copy among the negatives does not count, and without any negative the loss is 0. Metrics: `accuracy`, the share of
    queries whose positive scores above all of its negatives.

    Source: CPDAE (Ma et al. 2022), section 4.1.3, with 7 negatives; RankNet (Burges et al. 2005), equation 3.

    >>> import torch
    >>> from drkit.core.types import EmbeddedPairs
    >>> queries, passages = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
    >>> pairs = EmbeddedPairs(
    ...     queries=queries, passages=passages, positives=torch.tensor([0]), groups=torch.tensor([[0, 1, 2]])
    ... )
    >>> out = PairwiseLoss()(pairs=pairs)
    >>> round(out.loss.item(), 4)  # (log(1 + 1 / e) + log(1 + 1 / e^2)) / 2
    0.2201
    """

    def __init__(self, config: PairwiseConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = PairwiseConfig() if config is None else config

    def __call__(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if the shapes do not fit, or without groups."""
        kept = own_passages(pairs)
        scores = own_scores(pairs, self.config.similarity, self.config.temperature)
        losses = F.softplus(scores[:, 1:] - scores[:, :1])
        return StepOutput(loss=mean_over(losses, kept[:, 1:]), metrics={"accuracy": accuracy(scores, kept)})
