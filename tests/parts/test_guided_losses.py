"""The losses that a guide or hardness changes: equal to sentence-transformers' on the same batch, and to loops."""

import math

import pytest
import torch
from transformers import BertTokenizerFast

from drkit.core.registry import installed
from drkit.core.types import EmbeddedPairs
from drkit.errors import DrkitError
from drkit.losses import ContrastiveLoss, GistConfig, GistLoss, HardnessConfig, HardnessLoss
from drkit.losses.specs import ContrastiveConfig, KlDistillationConfig
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose

B, D, G = 7, 12, 5


def _batch(negatives=1, seed=0):
    """Return vectors of queries, positives and negatives of each query, of the model and of a guide, in float64."""
    draw = torch.Generator().manual_seed(seed)
    texts = 2 + negatives
    model = [torch.randn(B, D, generator=draw, dtype=torch.float64).requires_grad_() for _ in range(texts)]
    guide = [torch.randn(B, G, generator=draw, dtype=torch.float64) for _ in range(texts)]
    guide[1] = guide[0] + 0.9 * guide[1]  # the guide finds most positives close
    return model, guide


def _pairs(model, guide):
    negatives = len(model) - 2
    rows = torch.arange(B)
    groups = torch.stack([rows, *(B * (1 + number) + rows for number in range(negatives))], 1)
    return EmbeddedPairs(
        queries=model[0],
        passages=torch.cat(model[1:]),
        positives=rows,
        groups=groups,
        columns={"guide-queries": guide[0], "guide-passages": torch.cat(guide[1:])},
    )


class _Given(torch.nn.Module):
    """A model of sentence-transformers that returns the vectors that it is given under a name."""

    max_seq_length = 8
    tokenizer = BertTokenizerFast(
        vocab={name: n for n, name in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))}
    )

    def __init__(self, name):
        super().__init__()
        self.name = name

    def __getitem__(self, index):
        return self

    def forward(self, features):
        return {"sentence_embedding": features[self.name]}


def _theirs(model, guide, **settings):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    loss = losses.GISTEmbedLoss(_Given("model"), _Given("guide"), **settings)
    return loss([{"model": m, "guide": g} for m, g in zip(model, guide, strict=True)], None)


@pytest.mark.parametrize("negatives", [0, 1])
@pytest.mark.parametrize("margin", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(
    ("directions", "anchors", "positives"),
    [
        ("query-passage", False, False),
        (("query-passage", "query-query"), True, False),
        (("query-passage", "query-query", "passage-passage"), True, True),
    ],
)
def test_gist_is_that_of_sentence_transformers(negatives, margin, relative, directions, anchors, positives):
    model, guide = _batch(negatives)
    config = GistConfig(temperature=0.05, margin=margin, relative=relative, directions=directions)
    ours = GistLoss(config)(pairs=_pairs(model, guide)).loss
    theirs = _theirs(
        model,
        guide,
        temperature=0.05,
        margin=margin,
        margin_strategy="relative" if relative else "absolute",
        contrast_anchors=anchors,
        contrast_positives=positives,
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    found, wanted = (torch.autograd.grad(loss, model, retain_graph=True) for loss in (ours, theirs))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_text_is_never_contrasted_with_itself():
    """Where the guide gives a positive the score of its own query with itself, sentence-transformers contrasts it."""
    model, guide = _batch(0)
    guide[1] = guide[0]
    every = ("query-passage", "query-query", "passage-passage")
    pairs = _pairs(model, guide)
    ours = GistLoss(GistConfig(temperature=0.05, margin=-2, directions=every))(pairs=pairs).loss
    unit = [torch.nn.functional.normalize(rows) for rows in model]
    scores = torch.cat([unit[0] @ unit[1].T, *(rows @ rows.T for rows in unit)], 1) / 0.05
    itself = torch.cat([torch.zeros(B, B), torch.eye(B), torch.eye(B)], 1).bool()
    wanted = torch.nn.functional.cross_entropy(scores.masked_fill(itself, -math.inf), torch.arange(B))
    torch.testing.assert_close(ours, wanted)
    assert _theirs(model, guide, temperature=0.05, margin=-2) > ours + 1


def test_what_the_guide_scores_above_the_positive_has_no_gradient():
    model, guide = _batch(0)
    pairs = _pairs(model, guide)
    unit = torch.nn.functional.normalize(guide[0]), torch.nn.functional.normalize(guide[1])
    above = unit[0] @ unit[1].T > (unit[0] * unit[1]).sum(1, keepdim=True)
    assert above.any()
    out = GistLoss(GistConfig(directions="query-passage"))(pairs=pairs)
    assert out.metrics["guided"].item() == pytest.approx(above.sum(1).double().mean().item())
    scores = torch.nn.functional.normalize(model[0]) @ torch.nn.functional.normalize(model[1]).T / 0.01
    wanted = torch.nn.functional.cross_entropy(scores.masked_fill(above, -math.inf), torch.arange(B))
    torch.testing.assert_close(out.loss, wanted)


def test_a_guide_that_finds_nothing_above_leaves_the_contrastive_loss():
    model, guide = _batch()
    pairs = _pairs(model, guide)
    plain = ContrastiveLoss(ContrastiveConfig(temperature=0.01))(pairs=pairs).loss
    guided = GistLoss(GistConfig(directions="query-passage", margin=-2))(pairs=pairs)
    torch.testing.assert_close(guided.loss, plain)
    assert guided.metrics["guided"] == 0


@pytest.mark.parametrize("mode", ["hard", "batch", "all"])
@pytest.mark.parametrize("negatives", [1, 3])
def test_hardness_is_that_of_sentence_transformers(mode, negatives):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    model, guide = _batch(negatives)
    names = {"hard": "hard_negatives", "batch": "in_batch_negatives", "all": "all_negatives"}
    loss = losses.MultipleNegativesRankingLoss(
        _Given("model"), scale=20.0, hardness_mode=names[mode], hardness_strength=7.0
    )
    theirs = loss.compute_loss_from_embeddings(model, None)
    config = HardnessConfig(temperature=0.05, strength=7.0, negatives=mode)
    ours = HardnessLoss(config)(pairs=_pairs(model, guide)).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    found, wanted = (torch.autograd.grad(one, model, retain_graph=True) for one in (ours, theirs))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_no_strength_is_the_contrastive_loss():
    pairs = _pairs(*_batch())
    plain = ContrastiveLoss(ContrastiveConfig(temperature=0.05))(pairs=pairs).loss
    assert torch.equal(HardnessLoss(HardnessConfig(strength=0))(pairs=pairs).loss, plain)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "does not have the column 'guide-queries'"),
        ({"guide-queries": torch.ones(B), "guide-passages": torch.ones(2 * B, G)}, r"'guide-queries' must be f\[7,G\]"),
        ({"guide-queries": torch.ones(B, 3), "guide-passages": torch.ones(2 * B, G)}, "vectors of 3 and 5 numbers"),
    ],
)
def test_a_guide_that_does_not_fit_is_refused(columns, said):
    model, guide = _batch()
    pairs = _pairs(model, guide)
    with pytest.raises(DrkitError, match=said):
        GistLoss()(pairs=EmbeddedPairs(pairs.queries, pairs.passages, pairs.positives, columns=columns))


def test_a_guide_that_is_not_named_is_asked_for_with_the_line_to_type():
    recipe = compose(ComposeRequest(settings=("finetune.loss=gist",)), installed())
    with pytest.raises(DrkitError) as refused:
        check(recipe, installed().registry)
    for name, per in (("guide-queries", "query"), ("guide-passages", "passage")):
        assert f"""--set 'finetune.columns.{name}={{use="encoder", path="PATH", of="{per}"}}'""" in str(refused.value)


@pytest.mark.parametrize("config", [GistConfig, HardnessConfig, KlDistillationConfig])
def test_in_batch_negatives_are_declared(config):
    assert config().in_batch
