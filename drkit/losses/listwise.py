"""A cross-encoder's loss: rank the positive first among each query's own passages."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from drkit.core.types import BuildContext, ScoredGroups, StepOutput
from drkit.errors import DrkitError
from drkit.losses.candidates import accuracy
from drkit.losses.specs import ListwiseConfig


class ListwiseLoss:
    """- mean over queries of log( exp(s(q, p+)) / sum over its own passages p of exp(s(q, p)) ).

    | input | shape | what |
    |---|---|---|
    | groups.scores | f[Q,G] | s, a cross-encoder's scores; column 0 is the positive's |
    | groups.mask | bool[Q,G] | False: padding, or not a negative (column 0 always counts) |

    Metrics: `accuracy`, the share of queries whose positive has the best score of its group.

    Source: SimLM (Wang et al. 2023), section 3.3, its re-ranker; ListNet's top-one probability (Cao et al. 2007).

    >>> import torch
    >>> from drkit.core.types import ScoredGroups
    >>> mask = torch.tensor([[True, True, True], [True, True, False]])
    >>> out = ListwiseLoss()(groups=ScoredGroups(scores=torch.zeros(2, 3), mask=mask))
    >>> round(out.loss.item(), 4)  # (log 3 + log 2) / 2
    0.8959
    """

    def __init__(self, config: ListwiseConfig | None = None, _context: BuildContext | None = None) -> None:
        self.config = ListwiseConfig() if config is None else config

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
    for name in ("mask", "teacher"):
        given = getattr(groups, name)
        if given is not None and tuple(given.shape) != shape:
            raise DrkitError(f"groups.{name} must be [Q,G] = {shape}, got {tuple(given.shape)}")
