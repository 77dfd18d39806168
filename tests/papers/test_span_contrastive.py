from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drkit.errors import DrkitError
from drkit.losses import InfoNceConfig, InfoNceLoss
from drkit_query_as_context.loss import SpanContrastiveLoss


def rows(count, width=5, seed=0, scale=0.5):
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(count, generator=draw).view(-1, 2)
    partners = torch.empty(count, dtype=torch.long)
    partners[order[:, 0]], partners[order[:, 1]] = order[:, 1], order[:, 0]
    return torch.randn(count, width, generator=draw, dtype=torch.float64) * scale, partners


def naive(vectors, partners):
    """Every row in turn: its partner against all rows but itself."""
    total = 0.0
    for i, partner in enumerate(partners.tolist()):
        scores = [math.exp(float(vectors[i] @ vectors[k])) if k != i else 0.0 for k in range(len(vectors))]
        total -= math.log(scores[partner] / sum(scores))
    return total / len(vectors)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 2.0]))
def test_equals_the_loop(pairs, seed, scale):
    vectors, partners = rows(2 * pairs, seed=seed, scale=scale)
    loss = SpanContrastiveLoss()(bottleneck=vectors, partners=partners).loss
    assert loss.item() == pytest.approx(naive(vectors, partners), rel=1e-9, abs=1e-9)


def test_is_info_nce_of_dot_products_at_temperature_1():
    vectors, partners = rows(12)
    other = InfoNceLoss(InfoNceConfig(temperature=1.0, similarity="dot"))
    wanted = other(bottleneck=vectors, partners=partners).loss
    torch.testing.assert_close(SpanContrastiveLoss()(bottleneck=vectors, partners=partners).loss, wanted)


def test_a_rows_own_product_does_not_count_and_gradient_reaches_both_sides():
    vectors, partners = rows(2, scale=3.0)
    vectors.requires_grad_()
    assert SpanContrastiveLoss()(bottleneck=vectors, partners=partners).loss.item() == 0
    vectors, partners = rows(6)
    vectors.requires_grad_()
    SpanContrastiveLoss()(bottleneck=vectors, partners=partners).loss.backward()
    assert vectors.grad.any(1).all()


def test_half_precision_is_scored_in_single():
    vectors, partners = rows(6)
    half = SpanContrastiveLoss()(bottleneck=vectors.bfloat16() * 9, partners=partners).loss
    assert half.dtype == torch.float32
    single = SpanContrastiveLoss()(bottleneck=(vectors.bfloat16() * 9).float(), partners=partners).loss
    torch.testing.assert_close(half, single)


def test_accuracy_counts_rows_whose_partner_is_nearest():
    vectors = torch.tensor([[3.0, 0.0], [2.0, 0.0], [0.0, 3.0], [5.0, 1.0]])
    out = SpanContrastiveLoss()(bottleneck=vectors, partners=torch.tensor([1, 0, 3, 2]))
    assert out.metrics["accuracy"].item() == pytest.approx(0.25)


@pytest.mark.parametrize(("shape", "count"), [((4,), 4), ((4, 2), 3), ((1, 2), 1)])
def test_shapes_that_do_not_fit_are_refused(shape, count):
    with pytest.raises(DrkitError, match="span-contrastive expects rows"):
        SpanContrastiveLoss()(bottleneck=torch.zeros(shape), partners=torch.zeros(count, dtype=torch.long))


@pytest.mark.parametrize("loss", [SpanContrastiveLoss(), InfoNceLoss(InfoNceConfig(temperature=0.01))])
def test_autocast_does_not_round_scores(loss):
    vectors, partners = torch.randn(6, 9, generator=torch.Generator().manual_seed(4)), torch.tensor([3, 4, 5, 0, 1, 2])
    with torch.autocast("cpu", torch.bfloat16):
        found = loss(bottleneck=vectors, partners=partners).loss
    assert found.item() == loss(bottleneck=vectors, partners=partners).loss.item()
