"""Losses on a teacher's vectors against float64 computations, and against sentence-transformers on the same batch."""

import attrs
import numpy as np
import pytest
import torch
from torch import nn

from drkit.core.types import BuildContext, EmbeddedPairs
from drkit.errors import DrkitError
from drkit.losses import ContrastiveConfig, ContrastiveLoss
from drkit.losses.specs import VectorLossConfig
from drkit.losses.vectors import (
    TextVectorCosineLoss,
    TextVectorMseLoss,
    TextVectorRelationLoss,
    VectorCosineLoss,
    VectorMseLoss,
    VectorRelationLoss,
)
from drkit.testing import check_loss

QUERIES, PASSAGES, WIDTH, TEACHER = 4, 8, 6, 5
NAMES = ("query-vectors", "passage-vectors")


def drawn(rows, width, seed):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch(teacher=WIDTH, dtype=torch.float32):
    columns = {NAMES[0]: drawn(QUERIES, teacher, 3), NAMES[1]: drawn(PASSAGES, teacher, 4)}
    return EmbeddedPairs(
        queries=drawn(QUERIES, WIDTH, 1).to(dtype).requires_grad_(),
        passages=drawn(PASSAGES, WIDTH, 2).to(dtype).requires_grad_(),
        positives=torch.arange(QUERIES),
        columns={name: vectors.to(dtype) for name, vectors in columns.items()},
    )


def projecting(loss, config=None, teacher=TEACHER, seed=42):
    sizes = {"bottleneck": WIDTH, **dict.fromkeys((*NAMES, "text-vectors"), teacher)}
    return loss(config, BuildContext(vector_sizes=sizes, seed=seed))


def cosine(x, y):
    return (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)


def reference(name, student, teacher):
    """The loss of rows, by numpy in float64."""
    if name == "cosine":
        return np.mean([1 - cosine(x, t) for x, t in zip(student, teacher, strict=True)])
    if name == "mse":
        return np.mean([((x - t) ** 2).sum() / len(t) for x, t in zip(student, teacher, strict=True)])
    rows = range(len(student))
    return np.mean(
        [(cosine(student[i], student[j]) - cosine(teacher[i], teacher[j])) ** 2 for i in rows for j in rows if i != j]
    )


LOSSES = {"cosine": VectorCosineLoss, "mse": VectorMseLoss, "relation": VectorRelationLoss}
OF_TEXTS = {"cosine": TextVectorCosineLoss, "mse": TextVectorMseLoss, "relation": TextVectorRelationLoss}


def numbers(*tensors):
    return np.concatenate([tensor.detach().double().numpy() for tensor in tensors])


@pytest.mark.parametrize("teacher", [WIDTH, TEACHER])
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_that_of_float64(name, teacher):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        pairs, loss = batch(teacher, dtype), projecting(LOSSES[name], teacher=teacher).to(dtype)
        student = numbers(pairs.queries, pairs.passages)
        if loss.projection is not None:
            student = student @ numbers(loss.projection.weight).T + loss.projection.bias.detach().double().numpy()
        assert (loss.projection is None) == (teacher == WIDTH or name == "relation")
        expected = reference(name, student, numbers(*(pairs.columns[one] for one in NAMES)))
        assert loss(pairs=pairs).loss.item() == pytest.approx(expected, rel=tolerance)
        texts = projecting(OF_TEXTS[name], teacher=teacher).to(dtype)
        vectors = {"bottleneck": pairs.passages, "text_vectors": pairs.columns[NAMES[1]]}
        student = numbers(pairs.passages)
        if texts.projection is not None:
            student = student @ numbers(texts.projection.weight).T + texts.projection.bias.detach().double().numpy()
        expected = reference(name, student, numbers(pairs.columns[NAMES[1]]))
        assert texts(**vectors).loss.item() == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("side", ["queries", "passages"])
def test_one_side_alone(side):
    config = VectorLossConfig(**{side: ""})
    assert config.receives == (NAMES[side == "queries"],)
    pairs, kept = batch(), "passages" if side == "queries" else "queries"
    expected = reference("cosine", numbers(getattr(pairs, kept)), numbers(pairs.columns[config.receives[0]]))
    assert VectorCosineLoss(config)(pairs=pairs).loss.item() == pytest.approx(expected, rel=1e-5)


class Student(nn.Module):
    """Stands in for a SentenceTransformer: its vectors of texts are given."""

    device = torch.device("cpu")

    def get_embedding_dimension(self):
        return WIDTH

    def forward(self, features):
        return {"sentence_embedding": features["vectors"]}


@pytest.mark.parametrize("teacher", [WIDTH, TEACHER])
@pytest.mark.parametrize(("name", "metric"), [("cosine", "cosine"), ("mse", "mse")])
def test_value_and_gradients_are_those_of_sentence_transformers(name, metric, teacher):
    library = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    if not hasattr(library, "EmbedDistillLoss"):
        pytest.skip("an older version")
    pairs, loss = batch(teacher), projecting(LOSSES[name], teacher=teacher)
    theirs = library.EmbedDistillLoss(Student(), metric, None if teacher == WIDTH else teacher)
    if teacher != WIDTH:
        theirs.projection.load_state_dict(loss.projection.state_dict())
    # columns of theirs: anchor, positive, negative
    texts = [pairs.queries, pairs.passages[:QUERIES], pairs.passages[QUERIES:]]
    labels = [pairs.columns[NAMES[0]], *pairs.columns[NAMES[1]].split(QUERIES)]
    expected = theirs([{"vectors": one} for one in texts], torch.stack(labels, dim=1))
    ours = loss(pairs=pairs).loss
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6)
    learned = [pairs.queries, pairs.passages]
    for one, other in zip(*(torch.autograd.grad(value, learned) for value in (ours, expected)), strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-8)


def test_another_loss_is_added_with_its_weight():
    inner = ContrastiveConfig(temperature=1.0)
    config = VectorLossConfig(loss_weight=0.5)
    pairs, other = batch(), ContrastiveLoss(inner)
    alone, added = VectorMseLoss(config)(pairs=pairs), VectorMseLoss(config, loss=other)(pairs=pairs)
    assert added.loss.item() == pytest.approx(alone.loss.item() + 0.5 * other(pairs=pairs).loss.item(), rel=1e-6)
    assert set(added.metrics) == {"distance", "other", "accuracy"}
    assert not config.in_batch


def test_the_projection_depends_on_the_seed_alone_and_is_saved():
    torch.manual_seed(1)
    first = projecting(VectorCosineLoss)
    torch.manual_seed(2)
    again, other = projecting(VectorCosineLoss), projecting(VectorCosineLoss, seed=7)
    assert torch.equal(first.projection.weight, again.projection.weight)
    assert not torch.equal(first.projection.weight, other.projection.weight)
    other.load_state_dict(first.state_dict())
    assert other(pairs=batch(TEACHER)).loss == first(pairs=batch(TEACHER)).loss


def test_what_does_not_fit_is_refused():
    pairs = batch(TEACHER)
    with pytest.raises(DrkitError, match=r"6 numbers and the teacher's 5: .*vector_sizes"):
        VectorMseLoss()(pairs=pairs)
    wrong = attrs.evolve(pairs, columns={**pairs.columns, NAMES[0]: pairs.columns[NAMES[0]][:2]})
    with pytest.raises(DrkitError, match=r"'query-vectors' must hold vectors f\[4,K\], .* \(2, 5\)"):
        VectorRelationLoss()(pairs=wrong)
    with pytest.raises(DrkitError, match=r"does not have the column 'query-vectors'"):
        VectorMseLoss()(pairs=attrs.evolve(pairs, columns={}))
    sizes = {"bottleneck": WIDTH, NAMES[0]: 5, NAMES[1]: 7}
    with pytest.raises(DrkitError, match=r"one length, got query-vectors: 5, passage-vectors: 7"):
        VectorMseLoss(None, BuildContext(vector_sizes=sizes))


@pytest.mark.parametrize("name", [*LOSSES])
def test_the_losses_keep_the_contract(name):
    check_loss(f"vector-{name}")
    check_loss(f"text-vector-{name}")
