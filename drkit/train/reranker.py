"""Training a cross-encoder: each query with its positive and mined negatives, and a loss over every query's scores.

Queries are not compared with each other, so a batch may be cut anywhere except within a query's group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn

from drkit.core.protocols import Loss
from drkit.core.types import ScoredGroups
from drkit.data.corpus import StoredCorpus
from drkit.encoders import CrossEncoder
from drkit.encoders.cross_encoder import PairTokenizer
from drkit.train.batches import Example
from drkit.train.biencoder import TrainingPairs
from drkit.train.gradients import ITEMS, LOSS, METRIC, Rows

_NAME = "ranking"
_PAIR = ("ids", "attention", "types")


class GroupRanker(nn.Module):
    """A cross-encoder, and a loss over the scores of each query's group of passages.

    The module takes the tensors of `GroupCollator` and returns the losses of which `drkit.train.gradients` computes the
    gradients. forward_factor: only G / forward_factor of a query's G passages, at least two, go into the loss: the
    positive and the negatives with the best current scores, computed without gradients and dropout (SimLM's
    `rerank_forward_factor`).
    """

    row_indices: Mapping[str, str] = {}
    weights: Mapping[str, float] = {_NAME: 1.0}
    marks = ("attention",)

    def __init__(self, encoder: CrossEncoder, loss: Loss, *, forward_factor: int = 1) -> None:
        super().__init__()
        self.encoder = encoder
        self.loss: Any = loss
        self.forward_factor = forward_factor

    def compares(self) -> bool:
        """Return False: queries are not compared with each other."""
        return False

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Raise NotImplementedError: a re-ranker does not compare rows."""
        raise NotImplementedError(f"a re-ranker does not compare rows, got {sorted(rows)}")

    def count(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the number of queries in a batch, without reading a text."""
        return {ITEMS + _NAME: torch.tensor(len(tensors["sizes"]), device=tensors["ids"].device)}

    def forward(self, *, sizes: Tensor, local: bool = True, **pairs: Tensor) -> dict[str, Tensor]:
        """Return the loss of these queries; sizes i64[Q]: the number of pairs of each query, in order."""
        out = self.count({**pairs, "sizes": sizes})
        rows = group_rows(sizes)
        if self.forward_factor > 1:
            rows = self._hardest(pairs, rows)
        step = self.loss(groups=self._scored(pairs, rows))
        if local:
            out[LOSS + _NAME] = step.loss
        return {**out, **{f"{METRIC}{_NAME}.{key}": value for key, value in step.metrics.items()}}

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """Cut a batch into chunks of whole groups with at most `size` pairs; a larger group is a chunk by itself."""
        sizes = tensors["sizes"].tolist()
        chunks: list[dict[str, Tensor]] = []
        query = pair = 0
        while query < len(sizes):
            last, end = query + 1, pair + sizes[query]
            while last < len(sizes) and end + sizes[last] - pair <= size:
                last, end = last + 1, end + sizes[last]
            pairs = {name: tensors[name][pair:end] for name in _PAIR if name in tensors}
            chunks.append({**pairs, "sizes": tensors["sizes"][query:last]})
            query, pair = last, end
        return chunks

    def _scored(self, pairs: Mapping[str, Tensor], rows: Tensor) -> ScoredGroups:
        """Score only the pairs of `rows` i64[Q,G], which is padded with -1."""
        mask = rows >= 0
        scores = self.encoder(**{name: tensor[rows[mask]] for name, tensor in pairs.items()})
        indices = (mask.flatten().cumsum(0) - 1).clamp(min=0).view_as(rows)
        return ScoredGroups(scores=scores[indices].masked_fill(~mask, 0.0), mask=mask)

    def _hardest(self, pairs: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Return rows i64[Q,K], padded with -1: each query's positive, and its best-scored negatives now."""
        training = self.encoder.training
        self.encoder.eval()
        with torch.no_grad():
            found = self._scored(pairs, rows)
        self.encoder.train(training)
        scores = found.scores.float().masked_fill(~found.mask, -torch.inf)
        scores[:, 0] = torch.inf
        # From each query's own size: the number that it keeps must not depend on the rest of the batch.
        sizes = found.mask.sum(1)
        kept = (sizes // self.forward_factor).clamp(min=2).minimum(sizes)
        best = rows.gather(1, scores.topk(int(kept.max()), dim=1).indices)
        return best.masked_fill(torch.arange(best.shape[1], device=best.device) >= kept[:, None], -1)


def group_rows(sizes: Tensor) -> Tensor:
    """Return i64[Q,G]: the rows of each query's pairs, padded with -1; sizes: the number of pairs of each query.

    >>> group_rows(torch.tensor([2, 1, 3])).tolist()
    [[0, 1, -1], [2, -1, -1], [3, 4, 5]]
    """
    columns = torch.arange(int(sizes.max()), device=sizes.device)
    rows = (sizes.cumsum(0) - sizes)[:, None] + columns
    return torch.where(columns < sizes[:, None], rows, -1)


@frozen(eq=False)
class GroupCollator:
    """Turns (epoch, query) pairs into token pairs: each query with one positive, then up to `negatives` mined passages.

    pairs: the training queries; texts: their texts, in the same order; corpus: the passages. Groups are drawn as for a
    bi-encoder (`drkit.train.biencoder`).
    """

    pairs: TrainingPairs
    texts: Sequence[str]
    corpus: StoredCorpus
    tokens: PairTokenizer
    negatives: int
    seed: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Return ids, attention, types (if the encoder has them) and sizes i64[Q]; a batch belongs to one epoch."""
        rows = np.array([example for _, example in examples], dtype=np.int64)
        positives, negatives = self.pairs.draw(rows, examples[0][0], seed=self.seed, negatives=self.negatives)
        groups = [np.append(positive, mined) for positive, mined in zip(positives, negatives, strict=True)]
        sizes = np.array([len(group) for group in groups], dtype=np.int64)
        indices, which = np.unique(np.concatenate(groups), return_inverse=True)
        passages = self.tokens.encode([passage.content for passage in self.corpus.at(indices)])
        queries = self.tokens.encode([self.texts[q] for q in rows])
        batch = self.tokens.batch(
            [query for query, size in zip(queries, sizes, strict=True) for _ in range(size)],
            [passages[index] for index in which],
        )
        return {**batch, "sizes": torch.from_numpy(sizes)}
