"""Batches of fine-tuning: queries, each with a positive and hard negatives drawn anew every epoch, as tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from drkit.core.draws import Draws
from drkit.data.store import TokenStore
from drkit.runs.finetuning.drawing import draw_passages
from drkit.runs.pretraining.masking import BUCKET
from drkit.runs.training.batches import Example

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


class TeacherScores(Protocol):
    """What a teacher thought of passages, by place."""

    def lookup(self, query_place: int, passages: NDArray[np.int64]) -> NDArray[np.float32]:
        """Its scores f32[n] of passages i64[n] for a query, all by their places in the stores; NaN: unscored."""


@frozen(eq=False)
class PairCollator:
    """(epoch, query) pairs -> queries, one positive each, `negatives` hard negatives each.

    Which of several positives, and which of the mined negatives, is drawn anew every epoch, without repeats;
    a query with fewer mined negatives brings what it has. With a teacher, its scores of every query's own passages.
    refreshed: negatives of an epoch, a list a query, in the place of those that `pairs` has. own: i64[n], the passage
    with a query's own id, which does not stand against it either; -1: there is none.
    """

    pairs: TrainingPairs
    queries: TokenStore
    passages: TokenStore
    negatives: int
    seed: int
    teacher: TeacherScores | None = None
    refreshed: Callable[[int], Sequence[NDArray[np.int64]]] | None = None
    own: NDArray[np.int64] | None = None

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
            "judged": self._judged(chosen),
            "places": torch.from_numpy(places),
            "groups": torch.from_numpy(numbers),
            **taught,
        }

    def _judged(self, chosen: NDArray[np.int64]) -> Tensor:
        """i64[Q,J]: what is no negative of each query, padded with -1."""
        judged = padded([self.pairs.positives[q] for q in chosen])
        if self.own is None:
            return judged
        return torch.cat([judged, torch.from_numpy(self.own[chosen])[:, None]], dim=1)

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


def padded(lists: Sequence[NDArray[np.int64]]) -> Tensor:
    """i64[n, longest]: lists of numbers, padded with -1."""
    out = np.full((len(lists), max(map(len, lists), default=0)), -1, dtype=np.int64)
    for row, numbers in zip(out, lists, strict=True):
        row[: len(numbers)] = numbers
    return torch.from_numpy(out)
