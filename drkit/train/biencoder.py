"""Fine-tuning a bi-encoder: a shared encoder for queries and passages, or one each, and a loss over their vectors.

A judged positive of a query is never its negative, and neither is a second copy of any passage: both are masked by
passage index, here and only here, for every loss.
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

# A batch's tensors per query and per passage, besides their tokens.
QUERY_TENSORS = ("positives", "judged", "groups", "teacher")
PASSAGE_TENSORS = ("passage_indices",)


class BiEncoder(nn.Module):
    """One encoder for queries and passages, and a loss that sees the vectors of the whole batch, of all processes.

    With a `passage_encoder`, `encoder` reads only queries. The module takes the tensors of `PairCollator` and returns
    the rows that `drkit.train.gradients` compares.
    """

    numbering: Mapping[str, str] = {"positives": "passage_indices", "groups": "passage_indices"}
    weights: Mapping[str, float] = {}

    def __init__(self, encoder: MaskedLmEncoder, loss: Loss, *, passage_encoder: MaskedLmEncoder | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.passage_encoder = passage_encoder
        self.loss: Any = loss

    def compares(self) -> bool:
        """Return True: every query is compared with all passages."""
        return True

    def forward(self, *, local: bool = True, **tensors: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the rows to compare: vectors of queries and passages, and which of them belong together."""
        rows = {f"{ROWS}{name}": tensors[name] for name in (*QUERY_TENSORS, *PASSAGE_TENSORS) if name in tensors}
        passage_encoder = self.encoder if self.passage_encoder is None else self.passage_encoder
        for side, name, encoder in (("query", "queries", self.encoder), ("passage", "passages", passage_encoder)):
            if f"{side}.ids" in tensors:
                rows[ROWS + name] = encoder.vectors(tensors[f"{side}.ids"], tensors[f"{side}.attention"])
        return rows

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over all queries and passages, and its metrics."""
        return pair_loss(self.loss, rows)

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """Cut a batch into chunks of at most `size` texts, queries first."""
        queries, passages = (
            [
                {name: tensors[name][start : start + size] for name in names if name in tensors}
                for start in range(0, len(tensors[names[0]]), size)
            ]
            for names in (
                ("query.ids", "query.attention", *QUERY_TENSORS),
                ("passage.ids", "passage.attention", *PASSAGE_TENSORS),
            )
        )
        if self.passage_encoder is None:
            return [*queries, *passages]
        # After the last chunk, processes exchange the gradients of the weights that it used: it must use both encoders.
        return [*queries[:-1], *passages[:-1], {**queries[-1], **passages[-1]}]


def pair_loss(loss: Loss, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a loss over the rows of the whole batch, and its metrics; `negatives`: mean negatives per query.

    rows: queries f[Q,D], passages f[P,D], positives i64[Q], passage_indices i64[P], judged i64[Q,J], and optionally
    groups i64[Q,G] and teacher f[Q,G]; see `EmbeddedPairs`.
    """
    mask = candidate_mask(rows["passage_indices"], rows["judged"], rows["positives"])
    step = loss(
        pairs=EmbeddedPairs(
            queries=rows["queries"],
            passages=rows["passages"],
            positives=rows["positives"],
            candidates=mask,
            groups=rows.get("groups"),
            # Constant: the teacher gets no gradient.
            teacher=rows["teacher"].detach() if "teacher" in rows else None,
            numbers=rows["passage_indices"],
            sharing=share_positive(rows["judged"]),
        )
    )
    return step.loss, {**step.metrics, "negatives": mask.sum(1).float().mean() - 1}


def candidate_mask(passage_indices: Tensor, judged: Tensor, positives: Tensor) -> Tensor:
    """Return bool[Q,P]: which passages are candidates of each query (its positive and its negatives).

    passage_indices: i64[P], the passages' indices in the corpus; judged: i64[Q,J], all judged positives of each query,
    padded with -1; positives: i64[Q], the row of the query's positive. A repeated passage counts once; of the judged
    positives, only the query's row in `positives` counts.
    """
    order = torch.arange(len(passage_indices), device=passage_indices.device)
    mask = (first_copies(passage_indices) == order) & ~judged_positive_mask(passage_indices, judged)
    mask[torch.arange(len(judged), device=passage_indices.device), positives] = True
    return mask


def judged_positive_mask(passage_indices: Tensor, judged: Tensor) -> Tensor:
    """Return bool[Q,P]: which passages i64[P] are among each query's judged positives i64[Q,J]. Memory: Q x (J + P)."""
    unique, which = torch.unique(passage_indices, return_inverse=True)
    column = torch.searchsorted(unique, judged).clamp(max=len(unique) - 1)
    column = torch.where(unique[column] == judged, column, len(unique))  # not in the batch: an extra column
    found = torch.zeros(len(judged), len(unique) + 1, dtype=torch.bool, device=passage_indices.device)
    return found.scatter_(1, column, True)[:, which]


def share_positive(judged: Tensor) -> Tensor:
    """Return bool[Q,Q]: which queries share a judged positive; judged: i64[Q,J], padded with -1.

    >>> share_positive(torch.tensor([[4, 7], [7, -1], [5, -1]])).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    unique, which = torch.unique(judged, return_inverse=True)
    has = torch.zeros(len(judged), len(unique), device=judged.device).scatter_(1, which, 1.0)
    has[:, unique < 0] = 0
    return has @ has.T > 0
