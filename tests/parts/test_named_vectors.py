"""Poolings that give several vectors by name: joined, checked, declared, read by losses, the same in two processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from torch import nn

from drkit.core.registry import Registry, installed
from drkit.core.spec import Choice, ComponentSpec, NoSettings
from drkit.core.types import EmbeddedPairs, Section
from drkit.encoders import MaskedLmEncoder
from drkit.encoders.learned_pooling import LearnedPooling
from drkit.encoders.pooling import LexicalConfig, last_token
from drkit.errors import DrkitError, ProblemsError
from drkit.losses import ContrastiveConfig, ContrastiveLoss, PerVectorConfig, PerVectorLoss
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.trial import try_parts
from drkit.testing import check_loss, check_pooling
from drkit.testing.specs import ContractError
from drkit.testing.toys import toy_pairs
from tests.search.made import reader_of
from tests.search.toys import TEXTS, masked_lm, tokenizer


class TwoVectors(nn.Module):
    """The states of the first and of the last token, and a learned scale of the second."""

    def __init__(self, _config, context):
        super().__init__()
        hidden = context.backbone.hidden
        self.vector_lengths = {"first": hidden, "last": hidden}
        self.score_weights = {"last": 0.25}
        self.scale = nn.Parameter(torch.ones(hidden))

    def forward(self, hidden, attention):
        return {"first": hidden[:, 0], "last": self.scale * last_token(hidden, attention)}


class NotNamed(TwoVectors):
    def forward(self, hidden, attention):
        return torch.cat([*super().forward(hidden, attention).values()], 1)


def spec(kind="pooling", name="two-vectors", target="TwoVectors", **more):
    more = {"config": NoSettings, "provides": ("bottleneck:first", "bottleneck:last"), **more}
    return ComponentSpec(kind=kind, name=name, target=f"{__name__}:{target}", summary="a part", **more)


def registry_with(*specs):
    return Registry([*installed().registry, *specs])


REGISTRY = registry_with(spec())


def learned():
    return LearnedPooling("two-vectors", {}, MaskedLmEncoder(masked_lm()).info(tokenizer()), registry=REGISTRY)


def test_a_product_of_joined_vectors_is_the_weighted_sum_of_the_products():
    encoder = reader_of(masked_lm().base_model, tokenizer(), "two-vectors", learned_pooling=learned(), similarity="dot")
    joined = encoder.encode_passages(TEXTS)
    encoder.model.eval()
    states = []
    for ids in tokenizer()(TEXTS, truncation=True, max_length=64)["input_ids"]:
        with torch.no_grad():
            states.append(encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0])
    first, last = (np.stack([one[at].numpy() for one in states]).astype(np.float64) for at in (0, -1))
    np.testing.assert_allclose(joined @ joined.T, first @ first.T + 0.25 * last @ last.T, rtol=1e-4)
    sections = encoder.sections
    np.testing.assert_allclose(sections["last"].of(torch.from_numpy(joined)).numpy(), last, atol=1e-5)


def test_the_contract_of_poolings_covers_names_and_lengths():
    check_pooling(spec())
    with pytest.raises(ContractError, match=r"vector_lengths are .*, but its spec provides first"):
        check_pooling(spec(provides=("bottleneck:first",)))
    with pytest.raises(ContractError, match="it returns the vectors"):
        check_pooling(spec(target="NotNamed"))


def test_a_pooling_that_does_not_return_what_it_says_is_named_by_the_trial():
    registry = registry_with(spec(target="NotNamed"))
    recipe = compose(ComposeRequest(decoder=("mlm",)), installed())
    recipe = evolve(recipe, encoder=evolve(recipe.encoder, pooling=Choice("two-vectors", NoSettings())))
    with pytest.raises(DrkitError, match=r"'two-vectors' .*vector_lengths are .*, but its call returns one vector"):
        try_parts(recipe, registry)


@frozen
class ReadsLast:
    receives = ("bottleneck:last",)


class PullTogether:
    """The mean square of a named vector; of fine-tuning, of the queries' one."""

    def __init__(self, *_):
        pass

    def __call__(self, *, bottleneck_last):
        from drkit.core.types import StepOutput

        return StepOutput(loss=bottleneck_last.square().mean())


LAST = {"kind": "loss", "name": "pull", "target": "PullTogether", "provides": (), "receives": ("bottleneck:last",)}


def recipe_with(pooling, **slots):
    recipe = compose(ComposeRequest(decoder=("mlm",)), installed())
    task = recipe.pretrain.encoder
    losses = {**task.losses, "pull": Choice("pull", NoSettings(), weight=1.0)} if slots.get("pull") else task.losses
    pretrain = evolve(recipe.pretrain, encoder=evolve(task, losses=losses))
    dot = Choice("contrastive", ContrastiveConfig(temperature=1.0, similarity="dot"))
    finetune = evolve(recipe.finetune, loss=slots.get("loss", dot))
    return evolve(recipe, encoder=evolve(recipe.encoder, pooling=pooling), pretrain=pretrain, finetune=finetune)


def test_a_loss_of_pre_training_reads_one_vector():
    registry = registry_with(spec(), spec(**LAST))
    check_loss(spec(**LAST))
    recipe = recipe_with(Choice("two-vectors", NoSettings()), pull=True)
    check(recipe, registry)
    try_parts(recipe, registry)


def per_vector(**weights):
    return Choice("per-vector", PerVectorConfig(weights=weights))


@pytest.mark.parametrize(
    ("pooling", "slots", "problem"),
    [
        ("mean", {"pull": True}, r"loss 'pull' reads the vector 'last', but the pooling 'mean' gives one vector"),
        ("two-vectors", {"loss": per_vector(lexical=1.0)}, r"reads the vector 'lexical', .*gives first and last"),
        ("two-vectors", {"loss": per_vector(frist=1.0)}, "did you mean 'first'"),
        ("two-vectors", {"loss": Choice("contrastive", ContrastiveConfig())}, "which those of cosines cannot"),
    ],
)
def test_a_vector_that_is_not_there_is_refused_in_the_plan(pooling, slots, problem):
    registry = registry_with(spec(), spec(**LAST))
    with pytest.raises(ProblemsError, match=problem):
        check(recipe_with(Choice(pooling, NoSettings()), **slots), registry)


def test_per_vector_is_the_weighted_sum_of_the_loss_of_each():
    sections = {"dense": Section(0, 2, 0.5), "lexical": Section(2, 6)}
    pairs = evolve(toy_pairs(), sections=sections)
    inner = ContrastiveLoss(ContrastiveConfig(temperature=1.0, similarity="dot"))
    loss = PerVectorLoss(PerVectorConfig(weights={"sum": 1.0, "dense": 0.5, "lexical": 2.0}), loss=inner)
    dense = evolve(pairs, queries=pairs.queries[:, :2] / 0.5, passages=pairs.passages[:, :2] / 0.5)
    lexical = evolve(pairs, queries=pairs.queries[:, 2:], passages=pairs.passages[:, 2:])
    whole, first, second = (inner(pairs=one).loss for one in (pairs, dense, lexical))
    torch.testing.assert_close(loss(pairs=pairs).loss, whole + 0.5 * first + 2.0 * second)
    with pytest.raises(DrkitError, match=r"do not have the vector 'words' \(vectors: dense, lexical\)"):
        pairs.vector("words")
    check_loss("per-vector", PerVectorConfig(weights={"sum": 1.0, "dense": 0.5}))


@pytest.mark.parametrize("weights", [{}, {"dense": 0.0}, {"sum": -1.0}])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(ValueError, match="weights above 0"):
        PerVectorConfig(weights=weights)


def test_pairs_without_names_say_so():
    with pytest.raises(DrkitError, match=r"\(vectors: one\)"):
        EmbeddedPairs(torch.eye(2), torch.eye(2), torch.tensor([0, 1])).vector("dense")


def test_the_default_vector_of_lexical_with_dense_is_the_dense_one():
    pooling = LearnedPooling("lexical", {"dense": "cls"}, MaskedLmEncoder(masked_lm()).info(tokenizer()))
    encoder = MaskedLmEncoder(masked_lm(), pooling=pooling).eval()
    ids = torch.tensor([[2, 5, 6, 3]])
    out = encoder.encode(ids, ids != 0)
    torch.testing.assert_close(out.bottleneck, out.hidden[:, 0])
    joined = torch.cat([out.vectors["dense"], out.vectors["lexical"]], 1)
    torch.testing.assert_close(encoder.vectors(ids, ids != 0), joined)
    assert LexicalConfig().provides == ()


def test_a_run_that_only_pre_trains_scores_of_words_is_refused():
    both = Choice("lexical", LexicalConfig(dense="cls"))
    recipe = recipe_with(Choice("mean", NoSettings()))
    task = evolve(recipe.pretrain.encoder, pooling=both)
    recipe = evolve(recipe, pretrain=evolve(recipe.pretrain, encoder=task), finetune=None)
    with pytest.raises(ProblemsError, match="compared by dot product"):
        check(recipe, REGISTRY)
