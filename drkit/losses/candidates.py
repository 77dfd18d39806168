"""What the losses over pairs share: who answers whom, which passages are a query's own, and how they score."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import torch
import torch.nn.functional as F

from drkit.errors import DrkitError

if TYPE_CHECKING:
    from torch import Tensor

    from drkit.core.types import EmbeddedPairs

How = ParamSpec("How")
Made = TypeVar("Made")


def in_float32(
    score: Callable[Concatenate[EmbeddedPairs, How], Made],
) -> Callable[Concatenate[EmbeddedPairs, How], Made]:
    """A function of pairs, without autocast: bfloat16 has steps of 0.004 near 1, which a temperature multiplies."""

    @wraps(score)
    def scored(pairs: EmbeddedPairs, /, *args: How.args, **how: How.kwargs) -> Made:
        with torch.autocast(pairs.queries.device.type, enabled=False):
            return score(pairs, *args, **how)

    return scored


def vectors(pairs: EmbeddedPairs, similarity: str) -> tuple[Tensor, Tensor]:
    """Queries f[Q,D] and passages f[P,D], in float32 at least, of unit length where the similarity is `cosine`."""
    found = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (pairs.queries, pairs.passages))
    queries, passages = (F.normalize(t, dim=1) if similarity == "cosine" else t for t in found)
    return queries, passages


def copies(pairs: EmbeddedPairs) -> Tensor:
    """i64[P]: rows of one passage have one number."""
    if pairs.numbers is not None:
        return pairs.numbers
    return torch.arange(len(pairs.passages), device=pairs.passages.device)


def answers(pairs: EmbeddedPairs) -> Tensor:
    """bool[Q,P]: which passages answer a query: its own, another judged positive, and every copy of those.

    Without `numbers` copies are not told from judged positives: both are what is no candidate.
    """
    numbers = copies(pairs)
    own = numbers[None, :] == numbers[pairs.positives][:, None]
    if pairs.candidates is None:
        return own
    # A second copy is nobody's candidate: what is known of a passage is known of its first.
    return own | ~pairs.candidates[:, first_copies(numbers)]


def first_copies(numbers: Tensor) -> Tensor:
    """i64[P]: for rows of these numbers i64[P], the first row that has the same number.

    >>> first_copies(torch.tensor([7, 3, 7, 3, 9]))
    tensor([0, 1, 0, 1, 4])
    """
    kinds, which = torch.unique(numbers, return_inverse=True)
    order = torch.arange(len(numbers), device=numbers.device)
    return torch.full_like(kinds, len(numbers)).scatter_reduce(0, which, order, "amin")[which]


def own_passages(pairs: EmbeddedPairs) -> Tensor:
    """bool[Q,G]: which places of the groups count: the positive, and the first copy of each real negative."""
    check_groups(pairs)
    groups = _groups(pairs)
    there, rows = groups >= 0, groups.clamp(min=0)
    numbers = copies(pairs)[rows].masked_fill(~there, -1)
    again = (numbers[:, :, None] == numbers[:, None, :]).tril(-1).any(2)
    kept = there & ~again & ~answers(pairs).gather(1, rows)
    kept[:, 0] = True
    return kept


@in_float32
def own_scores(pairs: EmbeddedPairs, similarity: str, temperature: float) -> Tensor:
    """f[Q,G]: the scores of each query's own passages; without meaning at padding."""
    queries, passages = vectors(pairs, similarity)
    return torch.einsum("qd,qgd->qg", queries, passages[_groups(pairs).clamp(min=0)]) / temperature


def accuracy(scores: Tensor, kept: Tensor) -> Tensor:
    """f[]: the share of queries whose positive, in column 0, has the best of the scores f[Q,G] that are kept."""
    return (scores.detach().masked_fill(~kept, float("-inf")).argmax(1) == 0).float().mean()


def mean_over(values: Tensor, kept: Tensor) -> Tensor:
    """f[]: the mean of the values that are kept; 0 where none is."""
    return torch.where(kept, values, 0).sum() / kept.sum().clamp(min=1)


def check_pairs(pairs: EmbeddedPairs) -> None:
    """Raise DrkitError where the tensors of a bundle do not fit each other."""
    queries, passages = tuple(pairs.queries.shape), tuple(pairs.passages.shape)
    if len(queries) != 2 or len(passages) != 2 or queries[1] != passages[1]:
        raise DrkitError(f"pairs take queries f[Q,D] and passages f[P,D] of one width D, got {queries} and {passages}")
    if not queries[0] or not passages[0]:
        raise DrkitError(f"pairs hold {queries[0]} queries and {passages[0]} passages; at least one of each is needed")
    wanted = {
        "positives": ("i64[Q]", queries[:1]),
        "candidates": ("[Q,P]", (queries[0], passages[0])),
        "numbers": ("i64[P]", passages[:1]),
        "sharing": ("[Q,Q]", (queries[0], queries[0])),
    }
    for name, (shape, sizes) in wanted.items():
        given = getattr(pairs, name)
        if given is not None and tuple(given.shape) != sizes:
            raise DrkitError(f"pairs.{name} is {shape} = {sizes}, got {tuple(given.shape)}")


def check_groups(pairs: EmbeddedPairs) -> None:
    """Raise DrkitError where pairs lack groups, or groups and teacher do not fit the queries."""
    check_pairs(pairs)
    if pairs.groups is None:
        raise DrkitError(
            "pairs.groups is missing: i64[Q,G], the rows of each query's own passages, its positive first, -1 padding"
        )
    groups = tuple(pairs.groups.shape)
    if len(groups) != 2 or groups[0] != len(pairs.queries) or not groups[1]:
        raise DrkitError(f"pairs.groups is i64[Q,G] with Q = {len(pairs.queries)} and G of 1 or more, got {groups}")
    if pairs.teacher is not None and tuple(pairs.teacher.shape) != groups:
        raise DrkitError(f"pairs.teacher is f[Q,G] = {groups}, got {tuple(pairs.teacher.shape)}")


def taught(pairs: EmbeddedPairs, loss: str) -> tuple[Tensor, Tensor]:
    """(teacher f[Q,G], 0 where it has no finite score, bool[Q,G] where it has). Raises DrkitError without a teacher."""
    if pairs.teacher is None:
        raise DrkitError(
            f"{loss} learns from a teacher's scores and pairs.teacher is missing: f[Q,G], one for each of pairs.groups"
        )
    scored = pairs.teacher.isfinite()
    return pairs.teacher.detach().float().masked_fill(~scored, 0), scored


def _groups(pairs: EmbeddedPairs) -> Tensor:
    assert pairs.groups is not None
    return pairs.groups
