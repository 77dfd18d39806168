"""Rank a query's positive above its own other passages: pair by pair (a retriever), or as a list (a cross-encoder)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from drkit.core.spec import NoSettings
from drkit.core.types import BuildContext, EmbeddedPairs, ScoredGroups, StepOutput
from drkit.errors import DrkitError
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


class ListwiseLoss:
    """- mean over queries of log( exp(s(q, p+)) / sum over its own passages p of exp(s(q, p)) ).

    | input | shape | what |
    |---|---|---|
    | groups.scores | f[Q,G] | s, a cross-encoder's scores; column 0 is the positive's |
    | groups.mask | bool[Q,G] | False: padding, or not a negative (column 0 always counts) |

    Metrics: `accuracy`, the share of queries whose positive has the best score of its group.

    Source: SimLM (Wang et al. 2023), equation 4, its re-ranker; ListNet's top-one probability (Cao et al. 2007).

    >>> import torch
    >>> from drkit.core.types import ScoredGroups
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> out = ListwiseLoss()(groups=ScoredGroups(scores=torch.zeros(2, 3), mask=mask))
    >>> round(out.loss.item(), 4)  # (log 3 + log 2) / 2
    0.8959
    """

    def __init__(self, _config: NoSettings | None = None, _context: BuildContext | None = None) -> None:
        """Ignore the settings and the context that every part is built with."""

    def __call__(self, *, groups: ScoredGroups) -> StepOutput:
        """Return the loss of one batch. Raises DrkitError if the shapes do not fit."""
        check_scored_groups(groups)
        kept = groups.mask.clone()
        kept[:, 0] = True
        scores = groups.scores.to(torch.promote_types(groups.scores.dtype, torch.float32))
        first = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        loss = F.cross_entropy(scores.masked_fill(~kept, float("-inf")), first)
        return StepOutput(loss=loss, metrics={"accuracy": accuracy(scores, kept)})


def check_scored_groups(groups: ScoredGroups) -> None:
    """Raise DrkitError if the shapes of the groups do not fit each other."""
    shape = tuple(groups.scores.shape)
    if len(shape) != 2 or not shape[0] or not shape[1]:
        raise DrkitError(f"groups.scores must be f[Q,G] with at least one query and its positive, got {shape}")
    if tuple(groups.mask.shape) != shape:
        raise DrkitError(f"groups.mask must be [Q,G] = {shape}, got {tuple(groups.mask.shape)}")
