"""Shared by the losses over pairs: which passages answer a query, which are in its own group, and their scores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from drkit.core.spec import TEACHER
from drkit.core.types import EmbeddedPairs
from drkit.errors import DrkitError


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner products f[L,R] of rows f[L,D] and f[R,D], at least in float32, even under autocast.

    In bfloat16, steps of 0.004 would be divided by a temperature.
    """
    left, right = (rows.to(torch.promote_types(rows.dtype, torch.float32)) for rows in (left, right))
    with torch.autocast(left.device.type, enabled=False):
        return left @ right.T


def vectors(pairs: EmbeddedPairs, similarity: str) -> tuple[Tensor, Tensor]:
    """Return queries f[Q,D] and passages f[P,D], at least in float32, of unit length if the similarity is `cosine`."""
    found = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (pairs.queries, pairs.passages))
    queries, passages = (F.normalize(t, dim=1) if similarity == "cosine" else t for t in found)
    return queries, passages


def copies(pairs: EmbeddedPairs) -> Tensor:
    """Return a number for each row of passages, i64[P]; copies of one passage have the same number."""
    if pairs.numbers is not None:
        return pairs.numbers
    return torch.arange(len(pairs.passages), device=pairs.passages.device)


def answers(pairs: EmbeddedPairs) -> Tensor:
    """Return which passages answer a query, bool[Q,P]: its positive, other judged positives, and all their copies.

    Without `numbers`, copies cannot be distinguished from judged positives: neither are candidates.
    """
    numbers = copies(pairs)
    own = numbers[None, :] == numbers[pairs.positives][:, None]
    if pairs.candidates is None:
        return own
    # A second copy is never a candidate, so look at the first copy of each passage.
    return own | ~pairs.candidates[:, first_copies(numbers)]


def first_copies(numbers: Tensor) -> Tensor:
    """Return for each row of numbers i64[P] the index of the first row with the same number, i64[P].

    >>> first_copies(torch.tensor([7, 3, 7, 3, 9]))
    tensor([0, 1, 0, 1, 4])
    """
    kinds, which = torch.unique(numbers, return_inverse=True)
    order = torch.arange(len(numbers), device=numbers.device)
    return torch.full_like(kinds, len(numbers)).scatter_reduce(0, which, order, "amin")[which]


def own_passages(pairs: EmbeddedPairs) -> Tensor:
    """Return which entries of the groups count, bool[Q,G]: the positive, and the first copy of each negative."""
    check_groups(pairs)
    groups = _groups(pairs)
    is_passage, rows = groups >= 0, groups.clamp(min=0)
    numbers = copies(pairs)[rows].masked_fill(~is_passage, -1)
    again = (numbers[:, :, None] == numbers[:, None, :]).tril(-1).any(2)
    kept = is_passage & ~again & ~answers(pairs).gather(1, rows)
    kept[:, 0] = True
    return kept


def own_scores(pairs: EmbeddedPairs, similarity: str, temperature: float) -> Tensor:
    """Return the scores of each query's own passages, f[Q,G]; undefined at padding."""
    queries, passages = vectors(pairs, similarity)
    with torch.autocast(queries.device.type, enabled=False):
        return torch.einsum("qd,qgd->qg", queries, passages[_groups(pairs).clamp(min=0)]) / temperature


def accuracy(scores: Tensor, kept: Tensor) -> Tensor:
    """Return the share f[] of queries whose positive, in column 0, has the best kept score of f[Q,G]."""
    return (scores.detach().masked_fill(~kept, float("-inf")).argmax(1) == 0).float().mean()


def mean_over(values: Tensor, kept: Tensor) -> Tensor:
    """Return the mean f[] of the kept values, or 0 if none is kept."""
    return torch.where(kept, values, 0).sum() / kept.sum().clamp(min=1)


def check_pairs(pairs: EmbeddedPairs) -> None:
    """Raise DrkitError if the shapes of the pairs do not fit each other."""
    queries, passages = tuple(pairs.queries.shape), tuple(pairs.passages.shape)
    if len(queries) != 2 or len(passages) != 2 or queries[1] != passages[1]:
        raise DrkitError(
            f"pairs need queries f[Q,D] and passages f[P,D] of the same width D, got {queries} and {passages}"
        )
    if not queries[0] or not passages[0]:
        raise DrkitError(f"pairs need at least one query and one passage, got {queries[0]} and {passages[0]}")
    expected = {
        "positives": ("i64[Q]", queries[:1]),
        "candidates": ("[Q,P]", (queries[0], passages[0])),
        "numbers": ("i64[P]", passages[:1]),
        "sharing": ("[Q,Q]", (queries[0], queries[0])),
    }
    for name, (shape, sizes) in expected.items():
        given = getattr(pairs, name)
        if given is not None and tuple(given.shape) != sizes:
            raise DrkitError(f"pairs.{name} must be {shape} = {sizes}, got {tuple(given.shape)}")


def check_groups(pairs: EmbeddedPairs) -> None:
    """Raise DrkitError if the pairs have no groups, or these do not fit the queries."""
    check_pairs(pairs)
    if pairs.groups is None:
        raise DrkitError(
            "pairs.groups is missing; pass i64[Q,G]: the rows of each query's own passages, its positive "
            "first, padded with -1"
        )
    groups = tuple(pairs.groups.shape)
    if len(groups) != 2 or groups[0] != len(pairs.queries) or not groups[1]:
        raise DrkitError(
            f"pairs.groups must be i64[Q,G] with Q = {len(pairs.queries)} and G of 1 or more, got {groups}"
        )


def teacher_scores(pairs: EmbeddedPairs) -> tuple[Tensor, Tensor]:
    """Return the column `teacher` f[Q,G] (0 if not finite), and which of its scores are finite, bool[Q,G].

    Raises DrkitError without the column, or with another shape than that of the groups.
    """
    scores = pairs.column(TEACHER)
    if tuple(scores.shape) != tuple(_groups(pairs).shape):
        raise DrkitError(
            f"the column 'teacher' must be f[Q,G] = {tuple(_groups(pairs).shape)}, one score for each entry of "
            f"pairs.groups; got {tuple(scores.shape)}"
        )
    scored = scores.isfinite()
    return scores.detach().float().masked_fill(~scored, 0), scored


def _groups(pairs: EmbeddedPairs) -> Tensor:
    assert pairs.groups is not None
    return pairs.groups
