"""Find each row's partner among all other rows of the batch: what a contrast between two views of a text is."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from drkit.core.types import StepOutput
from drkit.errors import DrkitError


def find_partner(scores: Tensor, partners: Tensor, reduction: str = "mean") -> StepOutput:
    """- log( exp(s_ij) / sum over k != i of exp(s_ik) ), j the partner of i: the mean or the sum over all rows i.

    scores f[R,R], how like two rows are (the diagonal is not read); partners i64[R]. Metrics: `accuracy`, the share
    of rows whose partner has the best score.

    >>> scores = torch.zeros(4, 4)
    >>> round(find_partner(scores, torch.tensor([2, 3, 0, 1])).loss.item(), 4)  # log 3
    1.0986
    """
    alone = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    others = scores.masked_fill(alone, float("-inf"))
    accuracy = (others.detach().argmax(1) == partners).float().mean()
    return StepOutput(loss=F.cross_entropy(others, partners, reduction=reduction), metrics={"accuracy": accuracy})


def products(rows: Tensor) -> Tensor:
    """f[R,R], in float32 at least: inner products of every two rows f[R,D], also where autocast would round them."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    with torch.autocast(rows.device.type, enabled=False):
        return wide @ wide.T


def check_rows(rows: Tensor, partners: Tensor, what: str) -> None:
    """Raise DrkitError unless rows are f[R,.] and partners i64[R], R at least 2."""
    if rows.ndim != 2 or len(rows) < 2 or tuple(partners.shape) != (len(rows),):
        raise DrkitError(
            f"{what} takes rows f[R,.] and partners i64[R], R at least 2 (two rows a text), got "
            f"{tuple(rows.shape)} and {tuple(partners.shape)}"
        )
