"""Batches of fine-tuning: queries, each with a positive and hard negatives drawn anew every epoch, as tokens.

Which queries a round trains on, which passages a batch holds, and how many negatives a query really has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from drkit.core import processes
from drkit.core.draws import Draws
from drkit.core.protocols import InBatchNegatives
from drkit.data.store import TokenStore
from drkit.train.batches import Example
from drkit.train.pretrain import BUCKET

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]
    from drkit.recipe.schema import Choice, Training


def draw_queries(queries: int, wanted: int, *, seed: int, draw: int = 0) -> Places:
    """Places i64, ascending, of `wanted` of so many queries, others for every `draw`; 0, or too many: all of them.

    >>> draw_queries(10, 3, seed=1).tolist(), draw_queries(2, 3, seed=1).tolist()
    ([4, 7, 8], [0, 1])
    """
    if not 0 < wanted < queries:
        return np.arange(queries)
    return np.sort(np.random.default_rng([seed, draw]).permutation(queries)[:wanted])


def draw_passages(
    positives: Sequence[Places], mined: Sequence[Places], draws: Draws, *, negatives: int
) -> tuple[Places, list[Places]]:
    """One positive i64[Q] of each query, and up to `negatives` of its mined passages, without repeats, a list a query.

    positives, mined: places in the corpus, a list a query; draws: of those queries. What a query gets depends on its
    own lists and draws alone; one with fewer mined passages gets all it has.
    """
    which = draws.uniform(1)[:, 0]
    one = np.array([p[int(u * len(p))] for p, u in zip(positives, which, strict=True)], dtype=np.int64)
    width = max((len(m) for m in mined), default=0)
    if not negatives or not width:
        return one, [np.empty(0, dtype=np.int64) for _ in mined]
    keys = draws.uniform(width)
    keys[np.arange(width)[None, :] >= np.array([len(m) for m in mined])[:, None]] = 2.0  # past a query's own list
    order = np.argsort(keys, axis=1)[:, :negatives]
    kept = np.take_along_axis(keys, order, axis=1) < 2.0
    return one, [m[row[keep]] for m, row, keep in zip(mined, order, kept, strict=True)]


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


def effective_batch(collate: PairCollator, training: Training, loss: Choice) -> dict[str, Any]:
    """Return the batch a step really sees: papers' numbers are lower elsewhere because nobody prints this.

    A batch is that of all processes together, whatever chunks it is read in; accumulation adds up gradients of several,
    and no negatives.
    """
    queries = min(training.per_device_train_batch_size * processes.count(), len(collate.pairs))
    lists = collate.refreshed(0) if collate.refreshed else collate.pairs.negatives
    hard = float(np.array([min(len(n), collate.negatives) for n in lists]).mean())
    return {
        "training_queries": len(collate.pairs),
        "processes": processes.count(),
        "queries_per_batch": queries,
        "queries_per_step": queries * training.gradient_accumulation_steps,
        "hard_negatives_per_query": round(hard, 3),
        "negatives_per_query": round(queries * (1 + hard) - 1 if in_batch(loss) else hard, 1),
    }


def in_words(effective: Mapping[str, Any]) -> str:
    """Return the effective batch in a line."""
    return (
        f"{effective['training_queries']:,} training queries, {effective['queries_per_batch']:,} a batch; "
        f"negatives a query: {effective['negatives_per_query']:,} in the batch, "
        f"{effective['hard_negatives_per_query']:g} of them mined for it"
    )


def in_batch(loss: Choice) -> bool:
    """Whether a query stands against the passages of others."""
    return loss.config.in_batch if isinstance(loss.config, InBatchNegatives) else True


def mean_of(log: Sequence[Mapping[str, Any]], metric: str) -> float:
    """Return the mean of a metric over all steps: a line of the log has that of the steps since the line before."""
    steps = np.diff([0, *(line["step"] for line in log)])
    return float(np.average([line[metric] for line in log], weights=steps))
