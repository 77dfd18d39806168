"""drkit's losses of re-rankers in sentence-transformers' trainer of cross-encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from drkit.core.protocols import Loss
from drkit.core.types import ScoredGroups
from drkit.errors import DrkitError


class RankedGroups(nn.Module):
    """A loss that needs `groups` (`listwise`) as a loss of sentence-transformers' `CrossEncoderTrainer`.

    model: a `CrossEncoder` of sentence-transformers with one label. Called with columns of texts, as
    `drkit.miners.HardNegatives` gives them: query, positive, then negatives. A negative that reads as the positive, or
    stands twice in its row, does not count. labels: a teacher's scores of the positive and each negative, f[n] a row,
    for losses that need `teacher`, or None. All pairs of a batch go through the model at once. Returns the loss f[].

    Raises DrkitError for fewer than three columns, or labels of another number.
    """

    def __init__(self, model: Any, loss: Loss) -> None:
        super().__init__()
        self.model: Any = model
        self.loss = loss
        self.figures: dict[str, float] = {}

    def forward(self, inputs: Sequence[Sequence[str]], labels: Any = None, **how: Any) -> Tensor:
        """The loss of a batch; `figures` has what it says beside. how: prompt and task, for the model."""
        queries, *passages = inputs
        if len(passages) < 2:
            raise DrkitError(f"{len(inputs)} columns of texts; a query, its positive and negatives are wanted")
        groups = list(zip(*passages, strict=True))
        pairs = [(query, text) for query, group in zip(queries, groups, strict=True) for text in group]
        scores = self._scores(pairs, how).view(len(groups), -1)
        mask = torch.tensor([[text not in group[:at] for at, text in enumerate(group)] for group in groups])
        step = self.loss(groups=ScoredGroups(scores, mask.to(scores.device), _teacher(labels, scores)))
        self.figures = {name: float(value) for name, value in step.metrics.items()}
        return step.loss

    def _scores(self, pairs: Sequence[tuple[str, str]], how: dict[str, Any]) -> Tensor:
        """f[n], raw: the trainer leaves the model's own activation out."""
        if hasattr(self.model, "preprocess"):
            tokens = self.model.preprocess(list(pairs), **how)
        else:  # before sentence-transformers 6
            tokens = self.model.tokenizer(list(pairs), padding=True, truncation=True, return_tensors="pt")
        tokens = {k: v.to(self.model.device) if isinstance(v, Tensor) else v for k, v in tokens.items()}
        made = self.model(tokens)["scores"] if hasattr(self.model, "preprocess") else self.model(**tokens)[0]
        return torch.flatten(made)


def _teacher(labels: Any, scores: Tensor) -> Tensor | None:
    if labels is None or not len(labels):
        return None
    found = torch.stack([torch.as_tensor(row) for row in labels]).to(scores)
    if found.shape != scores.shape:
        raise DrkitError(
            f"labels of shape {tuple(found.shape)}; a teacher's scores are {tuple(scores.shape)}: of the positive and "
            f"each negative"
        )
    return found
