"""Training a cross-encoder: each query with its positive and mined negatives, and a loss over every query's own scores.

Nothing is compared between queries: a batch may be cut anywhere but inside a query's group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn

from drkit.core.draws import Draws
from drkit.core.protocols import Loss
from drkit.core.types import ScoredGroups
from drkit.data.corpus import StoredCorpus
from drkit.encoders import CrossEncoder
from drkit.encoders.pair_tokenizer import PairTokenizer
from drkit.runs.finetuning.drawing import draw_passages
from drkit.runs.finetuning.pairs import TrainingPairs
from drkit.runs.training.batches import Example
from drkit.runs.training.gathering import Rows
from drkit.runs.training.gradients import FIGURE, ITEMS, LOSS

NAME = "ranking"
PAIR = ("ids", "attention", "types")


class GroupRanker(nn.Module):
    """A cross-encoder, and a loss over the scores of each query's own passages.

    What it takes are the tensors of `GroupCollator`; what it returns is what `drkit.runs.training.gradients` takes
    gradients of.
    forward_factor: of a query's own G passages only G / forward_factor, two at least, go into the loss: the positive
    and the negatives that score best now, found without gradients and dropout (SimLM's `rerank_forward_factor`).
    """

    numbering: Mapping[str, str] = {}
    weights: Mapping[str, float] = {NAME: 1.0}

    def __init__(self, encoder: CrossEncoder, loss: Loss, *, forward_factor: int = 1) -> None:
        super().__init__()
        self.encoder = encoder
        self.loss: Any = loss
        self.forward_factor = forward_factor

    def compares(self) -> bool:
        """No query is compared with another."""
        return False

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Nothing: there are no rows to compare."""
        raise NotImplementedError(f"a re-ranker compares no rows, got {sorted(rows)}")

    def count(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How many queries a batch has, without reading a text."""
        return {ITEMS + NAME: torch.tensor(len(tensors["sizes"]), device=tensors["ids"].device)}

    def forward(self, *, sizes: Tensor, local: bool = True, **pairs: Tensor) -> dict[str, Tensor]:
        """The loss of these queries; sizes i64[Q]: how many of the pairs, in order, are each query's own."""
        made = self.count({**pairs, "sizes": sizes})
        rows = group_rows(sizes)
        if self.forward_factor > 1:
            rows = self._hardest(pairs, rows)
        step = self.loss(groups=self._scored(pairs, rows))
        if local:
            made[LOSS + NAME] = step.loss
        return {**made, **{f"{FIGURE}{NAME}.{key}": value for key, value in step.metrics.items()}}

    def chunks(self, tensors: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor]]:
        """Whole groups, at most `size` pairs at a time, or one group."""
        sizes = tensors["sizes"].tolist()
        parts: list[dict[str, Tensor]] = []
        query = pair = 0
        while query < len(sizes):
            last, end = query + 1, pair + sizes[query]
            while last < len(sizes) and end + sizes[last] - pair <= size:
                last, end = last + 1, end + sizes[last]
            own = {name: tensors[name][pair:end] for name in PAIR if name in tensors}
            parts.append({**own, "sizes": tensors["sizes"][query:last]})
            query, pair = last, end
        return parts

    def _scored(self, pairs: Mapping[str, Tensor], rows: Tensor) -> ScoredGroups:
        """Scores of the pairs i64[Q,G] (-1: none); where those are not all of them, the others are not read."""
        there = rows >= 0
        chosen = rows[there]
        scores = self.encoder(**{name: tensor[chosen] for name, tensor in pairs.items()})
        places = (there.flatten().cumsum(0) - 1).clamp(min=0).view_as(rows)
        return ScoredGroups(scores=scores[places].masked_fill(~there, 0.0), mask=there)

    def _hardest(self, pairs: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Rows i64[Q,K] (-1: none): of each query the positive, and the negatives that score best now."""
        training = self.encoder.training
        self.encoder.eval()
        with torch.no_grad():
            found = self._scored(pairs, rows)
        self.encoder.train(training)
        scores = found.scores.float().masked_fill(~found.mask, -torch.inf)
        scores[:, 0] = torch.inf
        # By each query's own size: how many it keeps must not depend on what else is in the batch.
        sizes = found.mask.sum(1)
        kept = (sizes // self.forward_factor).clamp(min=2).minimum(sizes)
        best = rows.gather(1, scores.topk(int(kept.max()), dim=1).indices)
        return best.masked_fill(torch.arange(best.shape[1], device=best.device) >= kept[:, None], -1)


def group_rows(sizes: Tensor) -> Tensor:
    """i64[Q,G]: the rows of each query's own pairs, given how many each has; -1: none.

    >>> group_rows(torch.tensor([2, 1, 3])).tolist()
    [[0, 1, -1], [2, -1, -1], [3, 4, 5]]
    """
    columns = torch.arange(int(sizes.max()), device=sizes.device)
    rows = (sizes.cumsum(0) - sizes)[:, None] + columns
    return torch.where(columns < sizes[:, None], rows, -1)


@frozen(eq=False)
class GroupCollator:
    """(epoch, query) pairs -> token pairs: of each query one positive, then up to `negatives` mined passages.

    pairs: the training queries; texts: theirs, in the same order; corpus: the passages. What stands in a group is drawn
    as for a bi-encoder (`drkit.runs.finetuning.drawing`).
    """

    pairs: TrainingPairs
    texts: Sequence[str]
    corpus: StoredCorpus
    tokens: PairTokenizer
    negatives: int
    seed: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Ids, attention, types where there are, and sizes i64[Q]; all examples of a batch belong to one epoch."""
        chosen = np.array([example for _, example in examples], dtype=np.int64)
        draws = Draws(self.seed, examples[0][0], chosen)
        positives, negatives = draw_passages(
            [self.pairs.positives[q] for q in chosen],
            [self.pairs.negatives[q] for q in chosen],
            draws,
            negatives=self.negatives,
        )
        groups = [np.append(one, own) for one, own in zip(positives, negatives, strict=True)]
        sizes = np.array([len(group) for group in groups], dtype=np.int64)
        places, which = np.unique(np.concatenate(groups), return_inverse=True)
        passages = self.tokens.encode([passage.content for passage in self.corpus.at(places)])
        queries = self.tokens.encode([self.texts[q] for q in chosen])
        batch = self.tokens.batch(
            [query for query, size in zip(queries, sizes, strict=True) for _ in range(size)],
            [passages[place] for place in which],
        )
        return {**batch, "sizes": torch.from_numpy(sizes)}
