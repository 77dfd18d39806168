"""Fine-tuning a bi-encoder: queries and passages through one encoder, or one each, and a loss over their vectors.

A judged positive of a query is never its negative, and neither is a second copy of any passage: both are masked
by id, here, once, for every loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.protocols import Loss
from drkit.core.types import EmbeddedPairs
from drkit.data.store import TokenStore
from drkit.encoders import MaskedLmEncoder
from drkit.losses.pairs import first_copies
from drkit.runs.batches import Example
from drkit.runs.drawing import draw_passages
from drkit.runs.gradients import ROWS, Rows
from drkit.runs.masking import BUCKET

if TYPE_CHECKING:
    from numpy.typing import NDArray


# What a batch says of each query and each passage beside their tokens.
OF_QUERIES = ("positives", "judged", "groups", "teacher")
OF_PASSAGES = ("places",)


class TeacherScores(Protocol):
    """What a teacher thought of passages, by place."""

    def lookup(self, query_place: int, passages: NDArray[np.int64]) -> NDArray[np.float32]:
        """Its scores f32[n] of passages i64[n] for a query, all by their places in the stores; NaN: unscored."""


class BiEncoder(nn.Module):
    """One encoder for queries and passages, and a loss that sees the vectors of the whole batch, of all processes.

    With a `passage_encoder`, `encoder` reads queries alone. What it takes are the tensors of `PairCollator`; what it
    returns is what `drkit.runs.gradients` takes gradients of.
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
    """A loss over the rows of the whole batch, and its figures.

    rows: queries f[Q,D], passages f[P,D], positives i64[Q], places i64[P], judged i64[Q,J], and where there are groups
    i64[Q,G] and teacher f[Q,G], as `EmbeddedPairs` has them.
    """
    step = loss(
        pairs=EmbeddedPairs(
            queries=rows["queries"],
            passages=rows["passages"],
            positives=rows["positives"],
            candidates=candidates(rows["places"], rows["judged"], rows["positives"]),
            groups=rows.get("groups"),
            # Constant: no gradient is carried back into a teacher.
            teacher=rows["teacher"].detach() if "teacher" in rows else None,
            numbers=rows["places"],
            sharing=sharing(rows["judged"]),
        )
    )
    return step.loss, dict(step.metrics)


@frozen(eq=False)
class TrainingPairs:
    """Judged training queries, as places in the stores.

    queries: i64[n], places in the query store. positives, negatives: places in the corpus, a list a query;
    negatives may be empty.
    """

    queries: NDArray[np.int64]
    positives: Sequence[NDArray[np.int64]]
    negatives: Sequence[NDArray[np.int64]]

    def __len__(self) -> int:
        return len(self.queries)

    def subset(self, places: NDArray[np.int64]) -> TrainingPairs:
        """The queries at these places i64[m]."""
        return TrainingPairs(
            self.queries[places], [self.positives[p] for p in places], [self.negatives[p] for p in places]
        )


@frozen(eq=False)
class PairCollator:
    """(epoch, query) pairs -> queries, one positive each, `negatives` hard negatives each.

    Which of several positives, and which of the mined negatives, is drawn anew every epoch, without repeats;
    a query with fewer mined negatives brings what it has. With a teacher, its scores of every query's own passages.
    refreshed: negatives of an epoch, a list a query, in the place of those that `pairs` has.
    """

    pairs: TrainingPairs
    queries: TokenStore
    passages: TokenStore
    negatives: int
    seed: int
    teacher: TeacherScores | None = None
    refreshed: Callable[[int], Sequence[NDArray[np.int64]]] | None = None

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """All examples of a batch belong to one epoch."""
        chosen = np.array([example for _, example in examples], dtype=np.int64)
        positives, negatives = self._draw(chosen, examples[0][0])
        places = np.concatenate([positives, *negatives])
        numbers = groups([len(own) for own in negatives])
        queries = self.queries.batch(self.pairs.queries[chosen], pad_to=BUCKET)
        passages = self.passages.batch(places, pad_to=BUCKET)
        taught = (
            {} if self.teacher is None else {"teacher": self._teach(self.teacher, chosen, places[numbers], numbers)}
        )
        return {
            "query.ids": queries.ids,
            "query.attention": queries.attention,
            "passage.ids": passages.ids,
            "passage.attention": passages.attention,
            "positives": torch.arange(len(chosen)),
            "judged": padded([self.pairs.positives[q] for q in chosen]),
            "places": torch.from_numpy(places),
            "groups": torch.from_numpy(numbers),
            **taught,
        }

    def _teach(
        self, teacher: TeacherScores, chosen: NDArray[np.int64], places: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> Tensor:
        scores = np.full(numbers.shape, np.nan, dtype=np.float32)
        for row, query, own, there in zip(scores, self.pairs.queries[chosen], places, numbers >= 0, strict=True):
            row[there] = teacher.lookup(int(query), own[there])
        return torch.from_numpy(scores)

    def _draw(self, chosen: NDArray[np.int64], epoch: int) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
        lists = self.pairs.negatives if self.refreshed is None else self.refreshed(epoch)
        return draw_passages(
            [self.pairs.positives[q] for q in chosen],
            [lists[q] for q in chosen],
            Draws(self.seed, epoch, chosen),
            negatives=self.negatives,
        )


def groups(negatives: Sequence[int]) -> NDArray[np.int64]:
    """i64[Q, 1 + most]: the rows of each query's own passages, given how many negatives each has; -1: none.

    The passages of a batch are all queries' positives, then the negatives of the first query, of the second, ..

    >>> groups([2, 0, 1])
    array([[ 0,  3,  4],
           [ 1, -1, -1],
           [ 2,  5, -1]])
    """
    counts = np.asarray(negatives, dtype=np.int64)
    columns = np.arange(counts.max(initial=0))
    rows = (len(counts) + np.cumsum(counts) - counts)[:, None] + columns
    return np.concatenate([np.arange(len(counts))[:, None], np.where(columns < counts[:, None], rows, -1)], axis=1)


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


def padded(lists: Sequence[NDArray[np.int64]]) -> Tensor:
    """i64[n, longest]: lists of numbers, padded with -1."""
    out = np.full((len(lists), max(map(len, lists), default=0)), -1, dtype=np.int64)
    for row, numbers in zip(out, lists, strict=True):
        row[: len(numbers)] = numbers
    return torch.from_numpy(out)


def training_pairs(
    query_ids: Sequence[str],
    positives: Mapping[str, NDArray[np.int64]],
    negatives: Mapping[str, NDArray[np.int64]],
) -> TrainingPairs:
    """The judged queries among `query_ids` (the query store's order), with their passages."""
    kept = [(place, query) for place, query in enumerate(query_ids) if len(positives.get(query, ()))]
    none = np.empty(0, dtype=np.int64)
    return TrainingPairs(
        queries=np.array([place for place, _ in kept], dtype=np.int64),
        positives=[positives[query] for _, query in kept],
        negatives=[negatives.get(query, none) for _, query in kept],
    )
