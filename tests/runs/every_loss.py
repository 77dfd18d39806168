"""Every loss of fine-tuning on one batch of judged pairs, whole and as the shares of two processes.

Run in two processes it takes the gradients of each loss, with and without cache, and writes what all processes have.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from drkit.core import processes
from drkit.core.types import StepOutput
from drkit.encoders import BertSizes, MaskedLmEncoder
from drkit.losses import (
    ContrastiveConfig,
    ContrastiveLoss,
    FlopsConfig,
    FlopsLoss,
    KlDistillationConfig,
    KlDistillationLoss,
    ListwiseLoss,
    MarginMseConfig,
    MarginMseLoss,
    MatryoshkaConfig,
    MatryoshkaLoss,
    PairwiseLoss,
)
from drkit.losses.specs import DIRECTIONS
from drkit.testing.toys import toy_tokenizer, toy_tokens
from drkit.train import gradients
from drkit.train import gradients as gathering
from drkit.train.biencoder import BiEncoder, pad_lists
from drkit.train.reranker import GroupRanker


class WithColumns:
    """Reads a number per query, one per passage, and a grade and a mark per own passage."""

    def __call__(self, *, pairs):
        scores = (pairs.queries @ pairs.passages.T) / 3 + pairs.column("age")
        chosen = scores.log_softmax(1).gather(1, pairs.positives[:, None])[:, 0]
        grades, marks = pairs.column("grade"), pairs.column("mark")
        assert not grades.is_floating_point()
        assert (grades < 0).equal(pairs.groups < 0), "-1 at padding"
        assert not (marks & (pairs.groups < 0)).any(), "False at padding"
        own = scores.gather(1, pairs.groups.clamp(min=0)) * (grades.clamp(min=0) + marks.float())
        return StepOutput(loss=-(pairs.column("weight") * chosen).sum() + own.sum() / 9)


CHUNKS = (0, 2)
LOSSES = {
    "columns": WithColumns(),
    **{name: ContrastiveLoss(ContrastiveConfig(temperature=0.3, directions=name)) for name in DIRECTIONS},
    "all": ContrastiveLoss(ContrastiveConfig(temperature=0.3, directions="all")),
    "dot": ContrastiveLoss(ContrastiveConfig(temperature=2.0, similarity="dot", directions="all")),
    "pairwise": PairwiseLoss(),
    "kl-distillation": KlDistillationLoss(KlDistillationConfig(temperature=0.3, directions="all")),
    "kl-distillation masked": KlDistillationLoss(
        KlDistillationConfig(temperature=0.3, teacher_temperature=2.0, mask_hard_negatives=True)
    ),
    "margin-mse": MarginMseLoss(MarginMseConfig(similarity="cosine")),
    "matryoshka": MatryoshkaLoss(
        MatryoshkaConfig(dimensions=(4,)), loss=ContrastiveLoss(ContrastiveConfig(temperature=0.3))
    ),
    "flops": FlopsLoss(
        FlopsConfig(queries=0.5, passages=0.2), loss=ContrastiveLoss(ContrastiveConfig(temperature=0.3))
    ),
    "listwise": ListwiseLoss(),
    "separate encoders": KlDistillationLoss(KlDistillationConfig(temperature=0.3, directions="all")),
}

# Queries by id: what is judged, their own passages (positive first), a teacher's scores. Queries 0 and 3 share their
# positive; passage 7 is a negative of two queries and an answer to a third; query 2 has none, query 4 no score.
JUDGED = [[3], [7, 9], [1, 3], [3, 5], [2]]
GROUPS = [[3, 7, 8], [9, 4, 6, 0], [1], [3, 7], [2, 8, 3]]
TEACHER = [[2.0, 1.0, math.nan], [0.5, 3.0, -1.0, 0.0], [1.0], [4.0, 2.5], [math.nan] * 3]
WEIGHTS, AGES = torch.tensor([1.0, 0.25, 2.0, 0.5, 1.5]), torch.arange(10) / 4
SHARES = ([0, 1], [2, 3, 4])


class PairScorer(nn.Module):
    """As small as a cross-encoder can be."""

    def __init__(self, encoder: MaskedLmEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.head = nn.Linear(16, 1)

    def forward(self, ids, attention):
        return self.head(self.encoder(ids, attention)["bottleneck"]).squeeze(1)


def spread(encoder):
    """Larger weights than BERT starts from: with those all texts have nearly one vector, and no loss much gradient."""
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.mul_(8 if weight.ndim > 1 else 1)
    return encoder


def module_of(name, dropout=0.0):
    sizes = BertSizes(hidden=16, layers=2, heads=2, intermediate=24, max_positions=64, dropout=dropout)
    encoder, other = (spread(MaskedLmEncoder.from_scratch(sizes, toy_tokenizer(), seed=seed)) for seed in (3, 4))
    if name == "listwise":
        return GroupRanker(PairScorer(encoder), LOSSES[name])
    return BiEncoder(encoder, LOSSES[name], passage_encoder=other if name == "separate encoders" else None)


def batch_of(name, chosen=(0, 1, 2, 3, 4)):
    """The batch of some of the queries, as a collator would make it."""
    texts = toy_tokens((30, 22, 9, 14, 13, 12, 17, 21, 8, 25), 1)
    groups, judged = [GROUPS[q] for q in chosen], [np.array(JUDGED[q]) for q in chosen]
    if name == "listwise":
        flat = [passage for own in groups for passage in own]
        ids = texts.ids[flat].clone()
        ids[:, 1] = torch.tensor([20 + q for q, own in zip(chosen, groups, strict=True) for _ in own])
        return {"ids": ids, "attention": texts.attention[flat], "sizes": torch.tensor([len(own) for own in groups])}
    indices = [own[0] for own in groups] + [passage for own in groups for passage in own[1:]]
    rows, start = [], len(groups)
    for number, own in enumerate(groups):
        rows.append(np.array([number, *range(start, start + len(own) - 1)]))
        start += len(own) - 1
    numbers = pad_lists(rows)
    teacher = torch.full(numbers.shape, math.nan)
    for row, query in zip(teacher, chosen, strict=True):
        row[: len(TEACHER[query])] = torch.tensor(TEACHER[query])
    queries = toy_tokens((6, 5, 9, 4, 7), 2)
    columns = {
        "column.weight": WEIGHTS[list(chosen)],
        "passage_column.age": AGES[indices],
        "column.grade": torch.where(numbers < 0, -1, torch.tensor(indices)[numbers] % 3),
        "column.mark": pad_lists([np.array(own) % 2 for own in groups]) == 1,
    }
    return {
        **(columns if name == "columns" else {}),
        "query.ids": queries.ids[list(chosen)],
        "query.attention": queries.attention[list(chosen)],
        "passage.ids": texts.ids[indices],
        "passage.attention": texts.attention[indices],
        "positives": torch.arange(len(groups)),
        "judged": pad_lists(judged),
        "passage_indices": torch.tensor(indices),
        "groups": numbers,
        "teacher": teacher,
    }


def small_rows(rank):
    """Rows of which one process has narrower ones."""
    return {
        "passage_indices": torch.arange(3),
        "groups": torch.tensor([[0, 2], [1, -1]] if rank == 0 else [[0, 1], [2, -1]]),
        "teacher": torch.full((2, 3), math.nan)[:, : 3 - rank].index_fill(1, torch.tensor([0]), 1.0),
        "flags": torch.ones(2, 1 + rank, dtype=torch.bool),
    }


def main(folder):
    with processes.group():
        found = gradients_of_every_loss(processes.rank())
        if processes.rank() == 0:
            torch.save(found, Path(folder) / "found.pt")


def gradients_of_every_loss(rank):
    found = {}
    for name in LOSSES:
        for chunk in CHUNKS:
            module = module_of(name).train()
            wrapped = DistributedDataParallel(module, find_unused_parameters=True, broadcast_buffers=False)
            strategy = gradients.GradientStrategy(
                forward=wrapped, backward=lambda loss: loss.backward(), chunk=chunk, accumulate=wrapped.no_sync
            )
            loss, _ = gradients.backward(module, batch_of(name, SHARES[rank]), strategy)
            dist.all_reduce(loss)
            found[f"{name} {chunk}.loss"] = loss / 2
            found |= {f"{name} {chunk}.{n}": p.grad for n, p in module.named_parameters() if p.grad is not None}
    _, rows = gathering.gather_rows(small_rows(rank), {"groups": "passage_indices"})
    return found | {name: row.detach() for name, row in rows.items()}


if __name__ == "__main__":
    main(sys.argv[1])
