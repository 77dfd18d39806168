"""drkit's losses in sentence-transformers' own trainers, and in any other loop.

`CachedGradients`: a contrastive batch larger than memory, over all processes. The vectors of the batch are computed
without a graph, a chunk at a time; the loss is taken over all of them; when it is differentiated, every chunk goes
through the model again, with the same dropout, and its vectors' gradients are carried in (GradCache, Gao et al. 2021,
which does not replay dropout). The same functions do it in drkit's own runs (`drkit.train.gradients`).
`RankedGroups`: the losses of re-rankers in the trainer of cross-encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from drkit.core.protocols import Loss
from drkit.core.types import ScoredGroups
from drkit.errors import DrkitError
from drkit.train.biencoder import pair_loss
from drkit.train.gradients import (
    ROWS,
    Rows,
    compare_rows,
    gather_rows,
    precision,
    random_numbers,
    random_state,
    world_size,
)

Features = Mapping[str, Any]
_VECTOR = "sentence_embedding"
# 2**63 over the golden ratio, odd: multiples of it spread over all 64 bits.
_GOLDEN = 0x4F1BBCDCBFA53E0B


class CachedGradients(nn.Module):
    """A drkit loss over pairs as a loss of sentence-transformers' trainer, or of any other loop.

    model: gives f[n,D] for the features of n texts, or a dict with `sentence_embedding` (a SentenceTransformer).
    loss: a loss that needs `pairs` (`contrastive`, `pairwise`, `kl-distillation`, `margin-mse`). chunk: texts that go
    through the model at once; the batch may be as large as you like, and the gradients are those of the whole batch.

    Called with the features of each column: query, positive, then any number of negatives, as many rows each. labels:
    f[n, columns - 1], a teacher's scores of the positive and each negative, or None. Equal texts of the batch, on all
    processes, are one passage or one query: neither a copy of a query's positive nor another positive of the same query
    is ever its negative. Returns the loss f[].

    Raises DrkitError for fewer than two columns, columns of different lengths, or labels of another shape.

    >>> from drkit.losses import ContrastiveConfig, ContrastiveLoss
    >>> table = nn.Embedding(10, 4)
    >>> model = lambda features: table(features["input_ids"]).mean(1)
    >>> loss = CachedGradients(model, ContrastiveLoss(ContrastiveConfig()), chunk=2)
    >>> queries, passages = torch.arange(6).reshape(3, 2), torch.arange(3, 9).reshape(3, 2)
    >>> loss([{"input_ids": queries}, {"input_ids": passages}]).backward()
    >>> table.weight.grad.shape
    torch.Size([10, 4])
    """

    def __init__(self, model: Callable[[Any], Any], loss: Loss, *, chunk: int = 32) -> None:
        super().__init__()
        if chunk < 1:
            raise DrkitError(f"chunk is {chunk}; at least one text goes through the model at a time")
        self.model: Any = model
        self.loss, self.chunk = loss, chunk
        self.figures: dict[str, float] = {}

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """The loss; differentiating it runs the model a second time. `figures` has what the loss says beside it."""
        columns = [dict(features) for features in sentence_features]
        rows = _numbers(columns, labels)
        parts = [part for column, features in enumerate(columns) for part in _chunks(features, column, self.chunk)]
        states, seen = [], [rows]
        alike = precision(rows[f"{ROWS}places"].device)
        for part in parts:
            states.append(random_state())
            with torch.no_grad(), alike():
                seen.append(self._embed(part))
        if not torch.is_grad_enabled():
            loss, figures = self.compare(gather_rows(_whole(seen), self.numbering)[1])
            self._tell(figures)
            return loss
        loss, figures, gradients = compare_rows(self, seen)
        self._tell(figures)
        out = loss.detach().requires_grad_()
        hook: Any = out.register_hook
        again = list(zip(parts, states, gradients[1:], strict=True))
        hook(lambda scale: self._replay(again, alike, scale))
        return out

    # What `drkit.train.gradients` asks of a module.
    numbering: Mapping[str, str] = {"positives": "places", "groups": "places"}

    def compares(self) -> bool:
        """Queries are compared with all passages."""
        return True

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss over the rows of all processes, and its figures."""
        asked, answers = rows["asked"], rows["places"][rows["positives"]]
        judged = torch.where(asked[:, None] == asked, answers, -1)
        return pair_loss(self.loss, {**rows, "judged": judged})

    def _embed(self, part: tuple[str, Features]) -> dict[str, Tensor]:
        name, features = part
        out = self.model(dict(features))
        return {ROWS + name: out[_VECTOR] if isinstance(out, Mapping) else out}

    def _replay(
        self,
        again: Iterable[tuple[tuple[str, Features], list[Tensor], Mapping[str, Tensor]]],
        alike: Callable[[], AbstractContextManager[Any]],
        scale: Tensor,
    ) -> None:
        # Each process has a share of the rows, and DDP averages over processes.
        scale = scale * world_size()
        for part, state, carried in again:
            with random_numbers(state), torch.enable_grad():
                with alike():
                    vectors = self._embed(part)
                terms = [(vectors[name] * gradient).sum() for name, gradient in carried.items()]
                torch.autograd.backward(torch.stack(terms).sum() * scale)

    def _tell(self, figures: Mapping[str, Tensor]) -> None:
        self.figures = {name: float(value) for name, value in figures.items()}


def _chunks(features: Features, column: int, size: int) -> list[tuple[str, Features]]:
    """Parts of a column of at most `size` rows; what is no tensor of its rows goes with every part."""
    name, rows = "passages" if column else "queries", _rows(features)
    return [
        (name, {key: value[start : start + size] if _is_row(value, rows) else value for key, value in features.items()})
        for start in range(0, rows, size)
    ]


def _is_row(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows


def _rows(features: Features) -> int:
    return next((len(value) for value in features.values() if isinstance(value, Tensor) and value.ndim > 1), 0)


def _numbers(columns: Sequence[Features], labels: Tensor | None) -> dict[str, Tensor]:
    """Which rows belong together, as the collator of drkit's own runs says it."""
    if len(columns) < 2:
        raise DrkitError(f"{len(columns)} column of texts; queries and positives are wanted, and maybe negatives")
    sizes = {_rows(features) for features in columns}
    if len(sizes) > 1 or not sizes - {0}:
        raise DrkitError(f"columns of {', '.join(map(str, sorted(sizes)))} rows; every column has one row a query")
    count, passages = sizes.pop(), columns[1:]
    places = torch.cat([_fingerprints(features) for features in passages])
    positives = torch.arange(count, device=places.device)
    found = {
        "positives": positives,
        "asked": _fingerprints(columns[0]),
        "places": places,
        "groups": positives[:, None] + count * torch.arange(len(passages), device=places.device),
    }
    if labels is not None and labels.numel():
        if tuple(labels.shape) != (count, len(passages)):
            raise DrkitError(
                f"labels of shape {tuple(labels.shape)}; a teacher's scores are {(count, len(passages))}: of the "
                f"positive and each negative"
            )
        found["teacher"] = labels.float()
    return {ROWS + name: rows for name, rows in found.items()}


def _fingerprints(features: Features) -> Tensor:
    """i64[n]: equal for equal texts, whatever their padding; different ones collide once in 2**63."""
    ids = features["input_ids"]
    mask = features.get("attention_mask")
    real = (ids + 1) * (torch.ones_like(ids) if mask is None else mask.to(ids.dtype))
    places = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    mixed = real * (places * _GOLDEN | 1)  # wraps around, as is wanted
    total: Tensor = ((mixed ^ (mixed >> 29)) * _GOLDEN).sum(1) & (2**63 - 1)
    return total


def _whole(seen: Sequence[Mapping[str, Tensor]]) -> Rows:
    names = dict.fromkeys(name for out in seen for name in out)
    return {name[len(ROWS) :]: torch.cat([out[name] for out in seen if name in out]) for name in names}


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
