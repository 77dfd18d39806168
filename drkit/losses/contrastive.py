"""InfoNCE: find each query's passage among all passages of the bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from drkit.core.types import StepOutput
from drkit.errors import DrkitError

if TYPE_CHECKING:
    from drkit.core.types import BuildContext, EmbeddedPairs
    from drkit.losses.config import ContrastiveConfig


class ContrastiveLoss:
    """- mean over queries of log( exp(s(q, p+) / t) / sum over candidates p of exp(s(q, p) / t) ).

    | input | shape | what |
    |---|---|---|
    | pairs.queries | f[Q,D] | query vectors |
    | pairs.passages | f[P,D] | positives and negatives, of this batch and of every rank |
    | pairs.positives | i64[Q] | each query's passage |
    | pairs.candidates | bool[Q,P] or None | False: not a negative of this query (its positive is always kept) |

    s is cosine or dot product, t the temperature. Metrics: `accuracy`, the share of queries whose passage has the
    best score.

    Source: van den Oord et al. 2018, equation 4; DPR (Karpukhin et al. 2020) for in-batch negatives.

    >>> import torch
    >>> from drkit.core.types import EmbeddedPairs
    >>> from drkit.losses import ContrastiveConfig, ContrastiveLoss
    >>> queries, passages = torch.eye(2), torch.eye(3)[:, :2]
    >>> loss = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot"))
    >>> out = loss(pairs=EmbeddedPairs(queries=queries, passages=passages, positives=torch.tensor([0, 1])))
    >>> round(out.loss.item(), 4), out.metrics["accuracy"].item()
    (0.5514, 1.0)
    """

    def __init__(self, config: ContrastiveConfig, context: BuildContext | None = None) -> None:
        self.config, self.context = config, context

    def __call__(self, *, pairs: EmbeddedPairs) -> StepOutput:
        """The loss of one bundle.

        Raises DrkitError where the shapes do not fit each other.
        """
        check_pairs(pairs)
        queries, passages = pairs.queries, pairs.passages
        if self.config.similarity == "cosine":
            queries, passages = F.normalize(queries, dim=1), F.normalize(passages, dim=1)
        scores = mask_candidates(queries @ passages.T / self.config.temperature, pairs)
        accuracy = (scores.detach().argmax(1) == pairs.positives).float().mean()
        return StepOutput(loss=F.cross_entropy(scores, pairs.positives), metrics={"accuracy": accuracy})


def mask_candidates(scores: Tensor, pairs: EmbeddedPairs) -> Tensor:
    """Scores f[Q,P] with -inf where a passage is no candidate; never at the positive itself."""
    if pairs.candidates is None:
        return scores
    places = torch.arange(scores.shape[1], device=scores.device)
    kept = pairs.candidates | (places == pairs.positives[:, None])
    return scores.masked_fill(~kept, float("-inf"))


def check_pairs(pairs: EmbeddedPairs) -> None:
    """Raise DrkitError where the tensors of a bundle do not fit each other."""
    queries, passages = tuple(pairs.queries.shape), tuple(pairs.passages.shape)
    if len(queries) != 2 or len(passages) != 2 or queries[1] != passages[1]:
        raise DrkitError(f"pairs take queries f[Q,D] and passages f[P,D] of one width D, got {queries} and {passages}")
    if not queries[0] or not passages[0]:
        raise DrkitError(f"pairs hold {queries[0]} queries and {passages[0]} passages; at least one of each is needed")
    if tuple(pairs.positives.shape) != (queries[0],):
        raise DrkitError(f"pairs.positives is i64[Q] = {(queries[0],)}, got {tuple(pairs.positives.shape)}")
    given = pairs.candidates
    if given is not None and tuple(given.shape) != (queries[0], passages[0]):
        raise DrkitError(f"pairs.candidates is [Q,P] = {(queries[0], passages[0])}, got {tuple(given.shape)}")
