"""drkit's losses in the trainers of sentence-transformers, and in any other training loop.

`CachedGradients` trains with a contrastive batch larger than memory, over all processes. It embeds the batch chunk by
chunk without a graph and computes the loss over all vectors. In the backward pass, every chunk goes through the model
again, with the same dropout, and receives the gradients of its vectors (GradCache, Gao et al. 2021, which does not
replay dropout). drkit's own runs use the same functions (`drkit.train.gradients`).
`RankedGroups` brings the losses of re-rankers to the trainer of cross-encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from drkit.core.protocols import Loss
from drkit.core.spec import TEACHER
from drkit.core.types import ScoredGroups
from drkit.errors import DrkitError
from drkit.train.biencoder import pair_loss
from drkit.train.gradients import (
    ROWS,
    Rows,
    compare_rows,
    current_autocast,
    gather_rows,
    get_random_state,
    join_rows,
    use_random_state,
    world_size,
)

Features = Mapping[str, Any]
# A chunk of a column: "queries" or "passages", and its features.
Chunk = tuple[str, Features]
_VECTOR = "sentence_embedding"
# What `StaticEmbedding` of sentence-transformers gets instead of padding: where each text begins.
_OFFSETS = "offsets"
# 2**63 over the golden ratio, odd: multiples of it spread over all 64 bits.
_GOLDEN = 0x4F1BBCDCBFA53E0B


class CachedGradients(nn.Module):
    """A drkit loss over pairs as a loss of sentence-transformers' trainer, or of any other loop.

    model: returns f[n,D] for the features of n texts, or a dict with `sentence_embedding` (a SentenceTransformer).
    loss: a loss that needs `pairs` (`contrastive`, `pairwise`, `kl-distillation`, `margin-mse`). chunk: number of texts
    that go through the model at once; the batch may be of any size, and the gradients are those of the whole batch.
    `metrics` holds the metrics of the last loss.

    Called with the features of each column: query, positive, then any number of negatives, all with the same number of
    rows. labels: f[n, columns - 1], a teacher's scores of the positive and each negative, or None. Equal texts of the
    batch, on all processes, count as one passage or one query: neither a copy of a query's positive nor another
    positive of the same query is ever its negative. Returns the loss f[].

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

    # `row_indices`, `compares` and `compare` make this a `drkit.train.gradients.Comparing`.
    row_indices: Mapping[str, str] = {"positives": "passage_indices", "groups": "passage_indices"}

    def __init__(self, model: Callable[[Any], Any], loss: Loss, *, chunk: int = 32) -> None:
        super().__init__()
        if chunk < 1:
            raise DrkitError(f"chunk must be at least 1, got {chunk}")
        self.model: Any = model
        self.loss, self.chunk = loss, chunk
        self.metrics: dict[str, float] = {}

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the loss and set `metrics`; the backward pass runs the model a second time."""
        columns = [dict(features) for features in sentence_features]
        indices = _row_indices(columns, labels)
        chunks = [chunk for column, features in enumerate(columns) for chunk in _chunks(features, column, self.chunk)]
        states, outputs = [], [indices]
        autocast = current_autocast(indices[f"{ROWS}passage_indices"].device)
        for chunk in chunks:
            states.append(get_random_state())
            with torch.no_grad(), autocast():
                outputs.append(self._embed(chunk))
        if not torch.is_grad_enabled():
            loss, metrics = self.compare(gather_rows(join_rows(outputs), self.row_indices)[1])
            self.metrics = _as_floats(metrics)
            return loss
        loss, metrics, gradients = compare_rows(self, outputs)
        self.metrics = _as_floats(metrics)
        out = loss.detach().requires_grad_()
        register_hook: Any = out.register_hook
        replays = list(zip(chunks, states, gradients[1:], strict=True))
        register_hook(lambda scale: self._replay(replays, autocast, scale))
        return out

    def compares(self) -> bool:
        """Return True: every query is compared with all passages."""
        return True

    def compare(self, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss over the rows of all processes, and its metrics."""
        queries, answers = rows["query_fingerprints"], rows["passage_indices"][rows["positives"]]
        judged = torch.where(queries[:, None] == queries, answers, -1)
        known = {name: row for name, row in rows.items() if name != "query_fingerprints"}
        return pair_loss(self.loss, {**known, "judged": judged})

    def _embed(self, chunk: Chunk) -> dict[str, Tensor]:
        name, features = chunk
        out = self.model(dict(features))
        return {ROWS + name: out[_VECTOR] if isinstance(out, Mapping) else out}

    def _replay(
        self,
        replays: Iterable[tuple[Chunk, list[Tensor], Mapping[str, Tensor]]],
        autocast: Callable[[], AbstractContextManager[Any]],
        scale: Tensor,
    ) -> None:
        # Each process has a share of the rows, and DDP averages over processes.
        scale = scale * world_size()
        for chunk, state, gradients in replays:
            with use_random_state(state), torch.enable_grad():
                with autocast():
                    vectors = self._embed(chunk)
                terms = [(vectors[name] * gradient).sum() for name, gradient in gradients.items()]
                torch.autograd.backward(torch.stack(terms).sum() * scale)


class RankedGroups(nn.Module):
    """A loss that needs `groups` (`listwise`) as a loss of sentence-transformers' `CrossEncoderTrainer`.

    model: a `CrossEncoder` of sentence-transformers with one label. Called with columns of texts as
    `HardNegatives` returns them: query, positive, then negatives. A negative does not count if it equals
    the positive or an earlier negative of its row. labels: a teacher's scores of the positive and each negative, f[n]
    per row, for losses that receive `teacher`, or None. All pairs of a batch go through the model at once. `metrics`
    holds the metrics of the last loss. Returns the loss f[].

    Raises DrkitError for fewer than three columns, or labels of another shape.
    """

    def __init__(self, model: Any, loss: Loss) -> None:
        super().__init__()
        self.model: Any = model
        self.loss = loss
        self.metrics: dict[str, float] = {}

    def forward(self, inputs: Sequence[Sequence[str]], labels: Any = None, **options: Any) -> Tensor:
        """Return the loss of a batch and set `metrics`; options: prompt and task, for the model."""
        queries, *passages = inputs
        if len(passages) < 2:
            raise DrkitError(f"expected at least 3 columns of texts (query, positive, negatives), got {len(inputs)}")
        groups = list(zip(*passages, strict=True))
        pairs = [(query, text) for query, group in zip(queries, groups, strict=True) for text in group]
        scores = self._scores(pairs, options).view(len(groups), -1)
        mask = torch.tensor([[text not in group[:column] for column, text in enumerate(group)] for group in groups])
        columns = {} if labels is None or not len(labels) else {TEACHER: _teacher(labels, scores)}
        step = self.loss(groups=ScoredGroups(scores, mask.to(scores.device), columns=columns))
        self.metrics = _as_floats(step.metrics)
        return step.loss

    def _scores(self, pairs: Sequence[tuple[str, str]], options: dict[str, Any]) -> Tensor:
        """Return raw scores f[n]; like the trainer, without the model's own activation."""
        if hasattr(self.model, "preprocess"):
            tokens = self.model.preprocess(list(pairs), **options)
        else:  # before sentence-transformers 6
            tokens = self.model.tokenizer(list(pairs), padding=True, truncation=True, return_tensors="pt")
        tokens = {k: v.to(self.model.device) if isinstance(v, Tensor) else v for k, v in tokens.items()}
        out = self.model(tokens)["scores"] if hasattr(self.model, "preprocess") else self.model(**tokens)[0]
        return torch.flatten(out)


def _as_floats(metrics: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _chunks(features: Features, column: int, size: int) -> list[Chunk]:
    """Cut a column into chunks of at most `size` rows; features that are not per-row tensors go with every chunk."""
    name, rows = "passages" if column else "queries", _count_rows(features)
    if _OFFSETS in features:
        return [(name, _cut_flat(features, start, start + size)) for start in range(0, rows, size)]
    return [
        (name, {key: value[start : start + size] if _is_row(value, rows) else value for key, value in features.items()})
        for start in range(0, rows, size)
    ]


def _cut_flat(features: Features, start: int, end: int) -> Features:
    """Return rows of a column whose token ids are one flat tensor, with the offset of each row."""
    ids, offsets = features["input_ids"], features[_OFFSETS]
    last = int(offsets[end]) if end < len(offsets) else len(ids)
    rows = offsets[start:end]
    return {**features, "input_ids": ids[int(rows[0]) : last], _OFFSETS: rows - rows[0]}


def _is_row(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows


def _count_rows(features: Features) -> int:
    if _OFFSETS in features:
        return len(features[_OFFSETS])
    return next((len(value) for value in features.values() if isinstance(value, Tensor) and value.ndim > 1), 0)


def _row_indices(columns: Sequence[Features], labels: Tensor | None) -> dict[str, Tensor]:
    """Return which rows belong together, named as by the collator of drkit's own runs."""
    if len(columns) < 2:
        raise DrkitError(f"expected at least 2 columns of texts (query, positive), got {len(columns)}")
    sizes = {_count_rows(features) for features in columns}
    if len(sizes) > 1 or not sizes - {0}:
        raise DrkitError(
            f"all columns must have the same number of rows, at least 1; got {', '.join(map(str, sorted(sizes)))}"
        )
    count, passages = sizes.pop(), columns[1:]
    passage_indices = torch.cat([_fingerprints(features) for features in passages])
    positives = torch.arange(count, device=passage_indices.device)
    found = {
        "positives": positives,
        "query_fingerprints": _fingerprints(columns[0]),
        "passage_indices": passage_indices,
        "groups": positives[:, None] + count * torch.arange(len(passages), device=passage_indices.device),
    }
    if labels is not None and labels.numel():
        _check_labels(labels, (count, len(passages)))
        found[TEACHER] = labels.float()
    return {ROWS + name: rows for name, rows in found.items()}


def _fingerprints(features: Features) -> Tensor:
    """Return i64[n]: equal for equal texts, whatever their padding; different texts collide once in 2**63."""
    ids = features["input_ids"]
    if _OFFSETS in features:
        texts = ids.tensor_split(features[_OFFSETS][1:].cpu())
        ids = pad_sequence(list(texts), batch_first=True, padding_value=-1)  # -1 + 1: padding does not count
    mask = features.get("attention_mask")
    real = (ids + 1) * (torch.ones_like(ids) if mask is None else mask.to(ids.dtype))
    positions = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    mixed = real * (positions * _GOLDEN | 1)  # wraps around on purpose
    total: Tensor = ((mixed ^ (mixed >> 29)) * _GOLDEN).sum(1) & (2**63 - 1)
    return total


def _teacher(labels: Any, scores: Tensor) -> Tensor:
    found = torch.stack([torch.as_tensor(row) for row in labels]).to(scores)
    _check_labels(found, tuple(scores.shape))
    return found


def _check_labels(labels: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(labels.shape) != shape:
        raise DrkitError(
            f"labels of shape {tuple(labels.shape)}, expected {shape}: a teacher's score of the positive and of each "
            f"negative"
        )
