"""Train a bi-encoder: queries, each with a positive and hard negatives, and a loss over the whole batch.

1. **Draw** (`PairCollator`). In each epoch, every query gets one of its positives and up to n of its hard negatives,
   drawn again. Hard negatives come from a chain of `drkit/miners`, are mined by the stage of
   `drkit/runs/making/negatives.py`, read by `judged_pairs` in `drkit/runs/making/finetune.py`, and drawn by
   `draw_passages` here. `drkit/train/refresh.py` replaces them during a training.
2. **Encode** (`BiEncoder`). One encoder for queries and passages, or one each, turns the texts into vectors.
3. **Mask** (`candidate_mask`). A query's candidates are all passages of the batch, of all processes. A judged positive
   of a query is never its negative, and neither is a second copy of any passage: both are masked by passage index, here
   and only here, for every loss.
4. **Compare** (`pair_loss`). The loss gets all vectors, the mask, and columns such as a teacher's scores.

Price of a batch with Q queries, P passages (at most Q (1 + n)) and vectors of D numbers, besides encoding Q + P texts:
O(Q P D) time and O(Q P) memory for the scores, O(Q (J + P) + Q^2) for the masks if a query has J judged positives.
With `gradient_cache_chunk` (`drkit/train/gradients.py`), texts are encoded chunk by chunk and once more for the
gradients: half again as much time, memory for one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from drkit.core.draws import Draws
from drkit.core.protocols import InBatchNegatives, Loss
from drkit.core.spec import Choice
from drkit.core.types import EmbeddedPairs, Section
from drkit.data.contexts import BUCKET
from drkit.data.rows import batched
from drkit.data.store import TokenStore
from drkit.encoders import MaskedLmEncoder
from drkit.losses.candidates import first_copies
from drkit.recipe.training import Training
from drkit.train.batches import Example, passage_counts, query_counts
from drkit.train.columns import AnyColumn
from drkit.train.gradients import ROWS, Rows, padding_of
from drkit.train.vector_columns import StoredVectors

_Indices = NDArray[np.int64]
# The rows that say which vectors belong together; all others are columns, by name after a prefix. A tensor whose name
# begins with `passage` has a row per passage, any other a row per query.
LINKS = ("queries", "passages", "positives", "judged", "groups", "passage_indices", "query_indices")
_QUERY, _PASSAGE = "query", "passage"
_COLUMN, PASSAGE_COLUMN = "column.", "passage_column."


class BiEncoder(nn.Module):
    """One encoder for queries and passages, and a loss that sees the vectors of the whole batch, of all processes.

    With a `passage_encoder`, `encoder` reads only queries. The module takes the tensors of `PairCollator` and returns
    the rows that `drkit.train.gradients` compares.
    """

    row_indices: Mapping[str, str] = {"positives": "passage_indices", "groups": "passage_indices"}
    weights: Mapping[str, float] = {}
    marks = ("query.attention", "passage.attention")

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
        rows = {ROWS + name: tensor for name, tensor in tensors.items() if not name.endswith((".ids", ".attention"))}
        passage_encoder = self.encoder if self.passage_encoder is None else self.passage_encoder
        for side, name, encoder in (("query", "queries", self.encoder), ("passage", "passages", passage_encoder)):
            if f"{side}.ids" in tensors:
                rows[ROWS + name] = encoder.vectors(tensors[f"{side}.ids"], tensors[f"{side}.attention"])
        return rows

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over all queries and passages, and its metrics."""
        pooling = self.encoder.learned_pooling
        return pair_loss(self.loss, rows, pooling.sections if pooling else {})

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """Cut a batch into chunks of at most `size` texts, queries first."""
        queries, passages = (
            [
                {
                    name: tensor[start : start + size]
                    for name, tensor in tensors.items()
                    if name.startswith(_PASSAGE) == (side == _PASSAGE)
                }
                for start in range(0, len(tensors[f"{side}.ids"]), size)
            ]
            for side in (_QUERY, _PASSAGE)
        )
        if self.passage_encoder is None:
            return [*queries, *passages]
        # After the last chunk, processes exchange the gradients of the weights that it used: it must use both encoders.
        return [*queries[:-1], *passages[:-1], {**queries[-1], **passages[-1]}]


def pair_loss(
    loss: Loss, rows: Rows, sections: Mapping[str, Section] = MappingProxyType({})
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a loss over the rows of the whole batch, and its metrics; `negatives`: mean negatives per query.

    rows: queries f[Q,D], passages f[P,D], positives i64[Q], passage_indices i64[P], judged i64[Q,J], optionally groups
    i64[Q,G] and query_indices i64[Q], and columns; sections: where named vectors are; see `EmbeddedPairs`.
    """
    # Constants: no column gets a gradient.
    columns = {name.rpartition(".")[2]: row.detach() for name, row in rows.items() if name not in LINKS}
    mask = candidate_mask(rows["passage_indices"], rows["judged"], rows["positives"])
    step = loss(
        pairs=EmbeddedPairs(
            queries=rows["queries"],
            passages=rows["passages"],
            positives=rows["positives"],
            candidates=mask,
            groups=rows.get("groups"),
            numbers=rows["passage_indices"],
            sharing=share_positive(rows["judged"]),
            sections=sections,
            query_ids=rows.get("query_indices"),
            passage_ids=rows["passage_indices"],
            columns=columns,
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


_PASSAGES_AT_ONCE = 1024


def share_positive(judged: Tensor) -> Tensor:
    """Return bool[Q,Q]: which queries share a judged positive; judged: i64[Q,J], padded with -1.

    >>> share_positive(torch.tensor([[4, 7], [7, -1], [5, -1]])).int()
    tensor([[1, 1, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """
    present = judged >= 0
    queries = torch.arange(len(judged), device=judged.device)[:, None].expand_as(judged)[present]
    _, passages, counts = torch.unique(judged[present], return_inverse=True, return_counts=True)
    shared = torch.diag(present.any(1))
    # Passages of few queries: each pair of them. Of many: a matrix product, so that no passage costs more than Q x Q.
    is_rare = 32 * counts**2 <= len(judged) ** 2
    _link_pairs(shared, queries, passages, torch.where(is_rare, counts, 0))
    _link_members(shared, queries, passages, (counts > 1) & ~is_rare)
    return shared


def _link_pairs(shared: Tensor, queries: Tensor, passages: Tensor, counts: Tensor) -> None:
    """Set in bool[Q,Q] every pair of queries of the same passage; counts: the queries of each passage, 0 to skip it.

    queries, passages: i64[N] each, the query and passage of every judgement.
    """
    kept = counts[passages] > 0
    order = passages[kept].argsort()
    queries, passages = queries[kept][order], passages[kept][order]
    repeats, starts = counts[passages], counts.cumsum(0) - counts
    one = torch.repeat_interleave(repeats)
    within = torch.arange(len(one), device=one.device) - (repeats.cumsum(0) - repeats)[one]
    shared[queries[one], queries[starts[passages[one]] + within]] = True


def _link_members(shared: Tensor, queries: Tensor, passages: Tensor, chosen: Tensor) -> None:
    """Set in bool[Q,Q] every pair of queries of the same chosen passage; see `_link_pairs`."""
    kept, numbers = chosen[passages], chosen.cumsum(0) - 1
    queries, passages = queries[kept], numbers[passages[kept]]
    for start in range(0, int(chosen.sum()), _PASSAGES_AT_ONCE):
        some = (passages >= start) & (passages < start + _PASSAGES_AT_ONCE)
        members = torch.zeros(len(shared), _PASSAGES_AT_ONCE, device=shared.device)
        members[queries[some], passages[some] - start] = 1.0
        shared |= members @ members.T > 0


_BATCHES_AT_ONCE = 1000


@frozen(eq=False)
class TrainingPairs:
    """Judged training queries and their passages, as indices.

    queries: i64[n], indices in the query store. positives, negatives: indices in the corpus, one array per query;
    arrays of negatives may be empty. relevant: the positives of each query and of those with the same text, none of
    which is a negative of it; None: its own.
    """

    queries: _Indices
    positives: Sequence[_Indices]
    negatives: Sequence[_Indices]
    relevant: Sequence[_Indices] | None = None

    def __len__(self) -> int:
        return len(self.queries)

    def subset(self, rows: _Indices) -> TrainingPairs:
        """Return the pairs of these queries, by row i64[m]."""
        relevant = None if self.relevant is None else [self.relevant[r] for r in rows]
        positives, negatives = ([lists[r] for r in rows] for lists in (self.positives, self.negatives))
        return TrainingPairs(self.queries[rows], positives, negatives, relevant)

    def known_to(self, column: AnyColumn) -> TrainingPairs:
        """Return the pairs that a column has values for, with the queries that keep a positive.

        A column of queries keeps or leaves out whole queries; other columns, single passages of each.
        """
        kept: list[tuple[_Indices, _Indices]] = []
        for query, *lists in zip(self.queries.tolist(), self.positives, self.negatives, strict=True):
            positives, negatives = (own[~column.lacks(query, own)] for own in lists)
            kept.append((positives, negatives))
        rows = np.array([row for row, (positives, _) in enumerate(kept) if len(positives)], dtype=np.int64)
        relevant = None if self.relevant is None else [self.relevant[row] for row in rows]
        relevant = [self.positives[row] for row in rows] if relevant is None else relevant
        return TrainingPairs(self.queries[rows], [kept[r][0] for r in rows], [kept[r][1] for r in rows], relevant)

    def judged(self, row: int) -> _Indices:
        """Return the passages that are never negatives of a query, by row."""
        return (self.relevant or self.positives)[row]

    def draw(
        self, rows: _Indices, epoch: int, *, seed: int, negatives: int, mined: Sequence[_Indices] | None = None
    ) -> tuple[_Indices, list[_Indices]]:
        """Draw the passages of queries, by row i64[m], in an epoch; see `draw_passages`.

        mined: one array per query, instead of the queries' own negatives.
        """
        mined = self.negatives if mined is None else mined
        draws = Draws(seed, epoch, rows)
        return draw_passages([self.positives[r] for r in rows], [mined[r] for r in rows], draws, negatives=negatives)


def schedule_lengths(pairs: TrainingPairs) -> NDArray[np.int32]:
    """Return the lengths i32[n] of queries for a `Schedule`, which sorts no batch that a loss compares: all equal.

    The encoder reads texts of similar length together within a batch, so nothing is lost to padding.
    """
    return np.zeros(len(pairs), dtype=np.int32)


@frozen(eq=False)
class PairCollator:
    """Turns (epoch, query) pairs into token batches: each query with one positive and up to `negatives` hard negatives.

    Every epoch draws again which of several positives, and which of the mined negatives, without repeats; a query with
    fewer mined negatives gets all of them. columns: by name, those that the loss receives. refreshed: returns an
    epoch's negatives, one array per query, which replace those of `pairs`. self_passages: i64[n], the passage with a
    query's own id, which is never its negative either, or -1. passage_length: tokens of a passage, if not all; the last
    token stays, which may end every text.
    """

    pairs: TrainingPairs
    queries: TokenStore
    passages: TokenStore
    negatives: int
    seed: int
    columns: Mapping[str, AnyColumn] = field(factory=dict)
    refreshed: Callable[[int], Sequence[_Indices]] | None = None
    self_passages: _Indices | None = None
    passage_length: int | None = None

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Return the tensors of `BiEncoder.forward`; all examples of a batch belong to one epoch."""
        rows = np.array([example for _, example in examples], dtype=np.int64)
        epoch = examples[0][0]
        mined = self.refreshed(epoch) if self.refreshed else None
        positives, negatives = self.pairs.draw(rows, epoch, seed=self.seed, negatives=self.negatives, mined=mined)
        passage_indices = np.concatenate([positives, *negatives])
        groups = group_indices([len(mined) for mined in negatives])
        query_ids, query_attention = self.queries.padded(self.pairs.queries[rows], pad_to=BUCKET)
        passage_ids, passage_attention = self.passages.padded(passage_indices, pad_to=BUCKET)
        if self.passage_length is not None:
            passage_ids, passage_attention = shorten(passage_ids, passage_attention, self.passage_length)
        batch = {
            "query.ids": query_ids,
            "query.attention": query_attention,
            "passage.ids": passage_ids,
            "passage.attention": passage_attention,
            "positives": torch.arange(len(rows)),
            "judged": self._judged(rows),
            "query_indices": torch.from_numpy(self.pairs.queries[rows]),
            "passage_indices": torch.from_numpy(passage_indices),
            "groups": torch.from_numpy(groups),
        }
        for name, column in self.columns.items():
            prefix = PASSAGE_COLUMN if column.per == _PASSAGE else _COLUMN
            batch[prefix + name] = column_tensor(column, self.pairs.queries[rows], passage_indices, groups)
        return batch

    def _judged(self, rows: _Indices) -> Tensor:
        """Return i64[Q,J]: the passages that are never negatives of each query, padded with -1."""
        judged = pad_lists([self.pairs.judged(row) for row in rows])
        if self.self_passages is None:
            return judged
        return torch.cat([judged, torch.from_numpy(self.self_passages[rows])[:, None]], dim=1)


def shorten(ids: Tensor, attention: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return token ids i64[N,T] and their attention with at most `length` tokens of each text, its last one included.

    >>> shorten(torch.tensor([[1, 5, 6, 7, 2], [1, 5, 2, 0, 0]]), torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]), 3)[0]
    tensor([[1, 5, 2],
            [1, 5, 2]])
    """
    if ids.shape[1] <= length:
        return ids, attention
    lengths = attention.long().sum(1)
    last = ids.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
    ids, attention = ids[:, :length].clone(), attention[:, :length]
    is_long = lengths > length
    ids[is_long, length - 1] = last[is_long]
    return ids, attention


def column_tensor(column: AnyColumn, queries: _Indices, passages: _Indices, groups: _Indices) -> Tensor:
    """Return the values of a batch: [Q] of queries i64[Q], [P] of passages i64[P], or [Q,G] of groups i64[Q,G].

    Of a column of vectors, f32[Q,D] or f32[P,D]. groups: the rows of each query's own passages, padded with -1; padding
    is NaN, -1 or False.
    """
    if isinstance(column, StoredVectors):
        return torch.from_numpy(column.take(passages if column.per == _PASSAGE else queries))
    if column.per == _PASSAGE:
        return torch.from_numpy(column.lookup(-1, passages))
    if column.per == _QUERY:
        return torch.from_numpy(np.concatenate([column.lookup(query, passages[:1]) for query in queries.tolist()]))
    values = [
        torch.from_numpy(column.lookup(query, passages[group[group >= 0]]))
        for query, group in zip(queries.tolist(), groups, strict=True)
    ]
    return pad_sequence(values, batch_first=True, padding_value=padding_of(values[0]))


def training_pairs(
    query_ids: Sequence[str],
    positives: Mapping[str, _Indices],
    negatives: Mapping[str, _Indices],
    relevant: Mapping[str, _Indices] | None = None,
) -> TrainingPairs:
    """Return the judged queries among `query_ids` (in the query store's order), with their passages.

    relevant: what is never a negative of each query; None: its positives.
    """
    judged = [(index, query) for index, query in enumerate(query_ids) if len(positives.get(query, ()))]
    none = np.empty(0, dtype=np.int64)
    return TrainingPairs(
        queries=np.array([index for index, _ in judged], dtype=np.int64),
        positives=[positives[query] for _, query in judged],
        negatives=[negatives.get(query, none) for _, query in judged],
        relevant=None if relevant is None else [relevant[query] for _, query in judged],
    )


def draw_queries(queries: int, count: int, *, seed: int, draw: int = 0) -> _Indices:
    """Draw `count` of `queries` indices i64, ascending, different for every `draw`; all if `count` is 0 or too large.

    >>> draw_queries(10, 3, seed=1).tolist(), draw_queries(2, 3, seed=1).tolist()
    ([4, 7, 8], [0, 1])
    """
    if not 0 < count < queries:
        return np.arange(queries)
    return np.sort(np.random.default_rng([seed, draw]).permutation(queries)[:count])


def draw_passages(
    positives: Sequence[_Indices], mined: Sequence[_Indices], draws: Draws, *, negatives: int
) -> tuple[_Indices, list[_Indices]]:
    """Draw one positive of each query, i64[Q], and up to `negatives` of its mined passages, without repeats.

    positives, mined: indices in the corpus, one array per query; draws: of those queries. The passages of a query
    depend only on its own arrays and draws; a query with fewer mined passages gets all of them.
    """
    which = draws.uniform(1)[:, 0]
    drawn = np.array([p[int(u * len(p))] for p, u in zip(positives, which, strict=True)], dtype=np.int64)
    width = max((len(m) for m in mined), default=0)
    if not negatives or not width:
        return drawn, [np.empty(0, dtype=np.int64) for _ in mined]
    keys = draws.uniform(width)
    keys[np.arange(width)[None, :] >= np.array([len(m) for m in mined])[:, None]] = 2.0  # beyond a query's own list
    order = np.argsort(keys, axis=1)[:, :negatives]
    kept = np.take_along_axis(keys, order, axis=1) < 2.0
    return drawn, [m[row[keep]] for m, row, keep in zip(mined, order, kept, strict=True)]


def drawn_passages(
    pairs: TrainingPairs, batches: Iterable[Sequence[Example]], *, negatives: int, seed: int
) -> list[_Indices]:
    """Return the passages i64[n], ascending, that `PairCollator` draws for each query in these batches of a training.

    Memory: 8 bytes per different pair of query and passage.
    """
    passages = 1 + max((int(own.max()) for own in chain(pairs.positives, pairs.negatives) if len(own)), default=0)
    found = np.empty(0, dtype=np.int64)  # query x passages + passage
    for some in batched(batches, _BATCHES_AT_ONCE):
        codes = [found]
        for batch in some:
            rows = np.array([example for _, example in batch], dtype=np.int64)
            positives, mined = pairs.draw(rows, batch[0][0], seed=seed, negatives=negatives)
            codes.append(rows * passages + positives)
            codes.append(np.repeat(rows, [len(own) for own in mined]) * passages + np.concatenate(mined))
        found = np.unique(np.concatenate(codes))
    queries, indices = np.divmod(found, passages)
    return np.split(indices, np.searchsorted(queries, np.arange(1, len(pairs))))


def group_indices(negatives: Sequence[int]) -> _Indices:
    """Return i64[Q, 1 + most]: the rows of each query's own passages in a batch, padded with -1.

    negatives: the number of negatives of each query. The passages of a batch are the positives of all queries, then the
    negatives of the first query, of the second, and so on.

    >>> group_indices([2, 0, 1])
    array([[ 0,  3,  4],
           [ 1, -1, -1],
           [ 2,  5, -1]])
    """
    counts = np.asarray(negatives, dtype=np.int64)
    columns = np.arange(counts.max(initial=0))
    rows = (len(counts) + np.cumsum(counts) - counts)[:, None] + columns
    return np.concatenate([np.arange(len(counts))[:, None], np.where(columns < counts[:, None], rows, -1)], axis=1)


def pad_lists(lists: Sequence[_Indices]) -> Tensor:
    """Stack arrays of different lengths as i64[n, longest], padded with -1."""
    out = np.full((len(lists), max(map(len, lists), default=0)), -1, dtype=np.int64)
    for row, values in zip(out, lists, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(out)


def effective_batch(collate: PairCollator, training: Training, loss: Choice) -> dict[str, Any]:
    """Return the size of the batch that a step really sees, in queries and negatives.

    A batch spans all processes and all chunks; accumulation adds up the gradients of several batches without adding
    negatives.
    """
    counts = query_counts(len(collate.pairs), training, compares=True)
    mined = collate.refreshed(0) if collate.refreshed else collate.pairs.negatives
    hard, passages = passage_counts(mined, collate.negatives, counts["queries_per_batch"])
    return {
        **counts,
        "hard_negatives_per_query": round(hard, 3),
        "negatives_per_query": round(passages - 1 if uses_in_batch_negatives(loss) else hard, 1),
    }


def uses_in_batch_negatives(loss: Choice) -> bool:
    """Return whether the passages of other queries are negatives of a query."""
    return loss.config.in_batch if isinstance(loss.config, InBatchNegatives) else True
