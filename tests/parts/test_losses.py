from __future__ import annotations

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drkit.core.types import EmbeddedPairs
from drkit.errors import DrkitError
from drkit.losses import ContrastiveConfig, ContrastiveLoss


def pairs(queries=4, passages=7, width=5, seed=0, **more) -> EmbeddedPairs:
    draw = torch.Generator().manual_seed(seed)
    return EmbeddedPairs(
        queries=torch.randn(queries, width, generator=draw),
        passages=torch.randn(passages, width, generator=draw),
        positives=torch.randint(0, passages, (queries,), generator=draw),
        **more,
    )


def naive(given: EmbeddedPairs, temperature: float, similarity: str) -> float:
    """The formula, one query and one passage at a time."""
    total = 0.0
    for q, (query, positive) in enumerate(zip(given.queries.double(), given.positives.tolist(), strict=True)):
        scores = []
        for passage in given.passages.double():
            score = (query * passage).sum()
            if similarity == "cosine":
                score = score / query.norm() / passage.norm()
            scores.append(torch.exp(score / temperature))
        allowed = [p for p in range(len(scores)) if given.candidates is None or given.candidates[q, p] or p == positive]
        total -= torch.log(scores[positive] / sum(scores[p] for p in allowed)).item()
    return total / len(given.queries)


@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.sampled_from(["cosine", "dot"]),
    st.sampled_from([0.05, 0.5, 1.0]),
    st.booleans(),
)
def test_equals_the_formula(queries, passages, seed, similarity, temperature, masked):
    bundle = pairs(queries, passages, seed=seed)
    if masked:
        draw = torch.Generator().manual_seed(seed)
        bundle = attrs.evolve(bundle, candidates=torch.rand(queries, passages, generator=draw) < 0.5)
    out = ContrastiveLoss(ContrastiveConfig(temperature=temperature, similarity=similarity))(pairs=bundle)
    assert out.loss.item() == pytest.approx(naive(bundle, temperature, similarity), rel=1e-3, abs=1e-4)


def test_a_masked_passage_gets_no_gradient_and_the_positive_is_never_masked():
    bundle = pairs(1, 3)
    bundle.passages.requires_grad_()
    nobody = torch.zeros(1, 3, dtype=torch.bool)
    out = ContrastiveLoss(ContrastiveConfig())(pairs=attrs.evolve(bundle, candidates=nobody))
    assert out.loss.item() == 0
    others = torch.ones(1, 3, dtype=torch.bool)
    negative = next(p for p in range(3) if p != bundle.positives[0])
    others[0, negative] = False
    ContrastiveLoss(ContrastiveConfig())(pairs=attrs.evolve(bundle, candidates=others)).loss.backward()
    assert not bundle.passages.grad[negative].any()
    assert bundle.passages.grad[bundle.positives[0]].any()


def test_accuracy_counts_queries_whose_passage_is_first():
    bundle = EmbeddedPairs(queries=torch.eye(3), passages=torch.eye(3), positives=torch.tensor([0, 1, 1]))
    out = ContrastiveLoss(ContrastiveConfig())(pairs=bundle)
    assert out.metrics["accuracy"].item() == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"passages": torch.zeros(7, 6)}, r"f\[Q,D\].*f\[P,D\]"),
        ({"queries": torch.zeros(5)}, r"f\[Q,D\].*f\[P,D\]"),
        ({"positives": torch.zeros(3, dtype=torch.long)}, r"positives .*i64\[Q\]"),
        ({"candidates": torch.ones(7, 4, dtype=torch.bool)}, r"candidates .*\[Q,P\]"),
        (
            {"queries": torch.zeros(0, 5), "positives": torch.zeros(0, dtype=torch.long)},
            "query .*passage, got 0",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(change, says):
    with pytest.raises(DrkitError, match=says):
        ContrastiveLoss(ContrastiveConfig())(pairs=attrs.evolve(pairs(), **change))
