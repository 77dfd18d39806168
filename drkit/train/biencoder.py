"""Fine-tuning a bi-encoder: queries and passages through one encoder, or one each, and a loss over their vectors.

A judged positive of a query is never its negative, and neither is a second copy of any passage: both are masked
by id, here, once, for every loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from drkit.core.protocols import Loss
from drkit.core.types import EmbeddedPairs
from drkit.encoders import MaskedLmEncoder
from drkit.losses.candidates import first_copies
from drkit.train.gradients import ROWS, Rows

# What a batch says of each query and each passage beside their tokens.
OF_QUERIES = ("positives", "judged", "groups", "teacher")
OF_PASSAGES = ("places",)


class BiEncoder(nn.Module):
    """One encoder for queries and passages, and a loss that sees the vectors of the whole batch, of all processes.

    With a `passage_encoder`, `encoder` reads queries alone. What it takes are the tensors of `PairCollator`;
    what it returns is what `drkit.train.gradients` takes gradients of.
    """

    numbering: Mapping[str, str] = {"positives": "places", "groups": "places"}
    weights: Mapping[str, float] = {}

    def __init__(self, encoder: MaskedLmEncoder, loss: Loss, *, passage_encoder: MaskedLmEncoder | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.passage_encoder = passage_encoder
        self.loss: Any = loss

    def compares(self) -> bool:
        """Queries are compared with all passages."""
        return True

    def forward(self, *, local: bool = True, **tensors: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """The rows to compare: vectors of queries and passages, and which of them belong together."""
        made = {f"{ROWS}{name}": tensors[name] for name in (*OF_QUERIES, *OF_PASSAGES) if name in tensors}
        passages = self.encoder if self.passage_encoder is None else self.passage_encoder
        for side, name, encoder in (("query", "queries", self.encoder), ("passage", "passages", passages)):
            if f"{side}.ids" in tensors:
                made[ROWS + name] = encoder(tensors[f"{side}.ids"], tensors[f"{side}.attention"])["bottleneck"]
        return made

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss over all queries and passages, and its figures."""
        return pair_loss(self.loss, rows)

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """Queries, then passages, at most `size` texts at a time."""
        queries, passages = (
            [
                {name: tensors[name][start : start + size] for name in names if name in tensors}
                for start in range(0, len(tensors[names[0]]), size)
            ]
            for names in (
                ("query.ids", "query.attention", *OF_QUERIES),
                ("passage.ids", "passage.attention", *OF_PASSAGES),
            )
        )
        if self.passage_encoder is None:
            return [*queries, *passages]
        # Processes exchange gradients after the last part, of those weights that it used: it must use both encoders.
        return [*queries[:-1], *passages[:-1], {**queries[-1], **passages[-1]}]


def pair_loss(loss: Loss, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss over the rows of the whole batch, and its figures; `negatives`: how many passages stand against a query.

    rows: queries f[Q,D], passages f[P,D], positives i64[Q], places i64[P], judged i64[Q,J], and where there are groups
    i64[Q,G] and teacher f[Q,G], as `EmbeddedPairs` has them.
    """
    allowed = candidates(rows["places"], rows["judged"], rows["positives"])
    step = loss(
        pairs=EmbeddedPairs(
            queries=rows["queries"],
            passages=rows["passages"],
            positives=rows["positives"],
            candidates=allowed,
            groups=rows.get("groups"),
            # Constant: no gradient is carried back into a teacher.
            teacher=rows["teacher"].detach() if "teacher" in rows else None,
            numbers=rows["places"],
            sharing=sharing(rows["judged"]),
        )
    )
    return step.loss, {**step.metrics, "negatives": allowed.sum(1).float().mean() - 1}


def candidates(places: Tensor, judged: Tensor, positives: Tensor) -> Tensor:
    """bool[Q,P]: which passages may stand against each query.

    places: i64[P], the passages' numbers; judged: i64[Q,J], all judged positives of each query, padded with -1;
    positives: i64[Q], which passage is the query's own. A passage that stands more than once counts once, and no
    judged positive counts but the query's own.
    """
    order = torch.arange(len(places), device=places.device)
    allowed = (first_copies(places) == order) & ~answering(places, judged)
    allowed[torch.arange(len(judged), device=places.device), positives] = True
    return allowed


def answering(places: Tensor, judged: Tensor) -> Tensor:
    """bool[Q,P]: which passages i64[P] are among each query's judged positives i64[Q,J]. Memory: Q x (J + P)."""
    kinds, which = torch.unique(places, return_inverse=True)
    at = torch.searchsorted(kinds, judged).clamp(max=len(kinds) - 1)
    at = torch.where(kinds[at] == judged, at, len(kinds))  # not in the batch: a column of their own
    found = torch.zeros(len(judged), len(kinds) + 1, dtype=torch.bool, device=places.device)
    return found.scatter_(1, at, True)[:, which]


def sharing(judged: Tensor) -> Tensor:
    """bool[Q,Q]: which queries share a judged positive, of i64[Q,J], padded with -1.

    >>> sharing(torch.tensor([[4, 7], [7, -1], [5, -1]])).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    kinds, which = torch.unique(judged, return_inverse=True)
    has = torch.zeros(len(judged), len(kinds), device=judged.device).scatter_(1, which, 1.0)
    has[:, kinds < 0] = 0
    return has @ has.T > 0
