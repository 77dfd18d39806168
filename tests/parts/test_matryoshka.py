"""Matryoshka: the sum of a loss over prefixes, wrapped around any loss over pairs, in Python and in a recipe."""

import attrs
import pytest
import torch

from drkit.core.registry import Registry, installed
from drkit.core.spec import Choice, ComponentSpec, NoSettings
from drkit.core.types import StepOutput
from drkit.errors import DrkitError, ProblemsError, UnknownNameError
from drkit.losses import ContrastiveConfig, ContrastiveLoss, MarginMseConfig, MatryoshkaConfig, MatryoshkaLoss
from drkit.losses.matryoshka import prefix_lengths
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.paths import setting_paths
from drkit.recipe.toml import parse_toml, recipe_from_table, recipe_toml
from drkit.runs.trial import try_parts
from drkit.testing.toys import toy_context, toy_pairs
from drkit.train.biencoder import uses_in_batch_negatives

PARTS = installed()


def cut(pairs, length):
    return attrs.evolve(pairs, queries=pairs.queries[:, :length], passages=pairs.passages[:, :length])


@pytest.mark.parametrize("name", ["contrastive", "pairwise", "kl-distillation", "margin-mse"])
def test_it_is_the_sum_of_the_loss_over_prefixes(name):
    config = PARTS.registry.get("loss", name).config()
    inner = PARTS.registry.build("loss", name, config)
    pairs = toy_pairs(12)
    out = PARTS.registry.build("loss", "matryoshka", MatryoshkaConfig(Choice(name, config), (3, 5)))(pairs=pairs)
    expected = [inner(pairs=cut(pairs, length)) for length in (12, 5, 3)]
    torch.testing.assert_close(out.loss, sum(step.loss for step in expected))
    assert out.metrics["accuracy"] == expected[0].metrics["accuracy"]
    assert out.metrics["accuracy_3"] == expected[2].metrics["accuracy"]
    (whole,) = torch.autograd.grad(out.loss, pairs.queries)
    parts = [torch.autograd.grad(step.loss, pairs.queries)[0] for step in expected]
    torch.testing.assert_close(whole, sum(parts))


def test_without_dimensions_the_vector_is_halved_as_in_the_paper():
    assert prefix_lengths(2048) == (1024, 512, 256, 128, 64, 32, 16, 8)
    assert prefix_lengths(8) == ()
    out = MatryoshkaLoss()(pairs=toy_pairs(32))
    assert {name for name in out.metrics if name.startswith("accuracy")} == {"accuracy", "accuracy_16", "accuracy_8"}


class GivesNan:
    """A stranger's loss over pairs that is no number."""

    def __init__(self, _config, _context):
        pass

    def __call__(self, *, pairs):
        return StepOutput(loss=pairs.queries.mean() * float("nan"))


@pytest.mark.parametrize("outer", ["matryoshka", "flops"])
def test_the_trial_finds_a_broken_loss_within_a_loss(outer):
    """The inner loss is known to the registry of the trial alone, not to the installed one."""
    target = f"{__name__}:GivesNan"
    broken = ComponentSpec("loss", "broken", target, NoSettings, "a loss", receives=("pairs",), provider="mine 1.0")
    registry = Registry([*PARTS.registry, broken])
    spec = registry.get("loss", outer)
    recipe = compose(ComposeRequest(), PARTS)
    chosen = Choice(outer, spec.config(loss=Choice("broken", NoSettings())))
    recipe = attrs.evolve(recipe, finetune=attrs.evolve(recipe.finetune, loss=chosen))
    with pytest.raises(DrkitError, match="the loss is nan, expected a finite number"):
        try_parts(recipe, registry)
    with pytest.raises(UnknownNameError, match="'broken'"):
        PARTS.registry.build("loss", outer, chosen.config, toy_context())


def test_an_inner_loss_that_cannot_be_built_is_named_by_the_trial():
    spec = ComponentSpec("loss", "broken", f"{__name__}:Nowhere", NoSettings, "a loss", receives=("pairs",))
    recipe = compose(ComposeRequest(), PARTS)
    chosen = Choice("matryoshka", MatryoshkaConfig(Choice("broken", NoSettings())))
    recipe = attrs.evolve(recipe, finetune=attrs.evolve(recipe.finetune, loss=chosen))
    with pytest.raises(DrkitError, match=r"loss 'broken' .*: cannot import its target"):
        try_parts(recipe, Registry([*PARTS.registry, spec]))


def test_a_prefix_as_long_as_the_vector_is_refused():
    loss = MatryoshkaLoss(MatryoshkaConfig(dimensions=(6,)), loss=ContrastiveLoss(ContrastiveConfig()))
    with pytest.raises(DrkitError, match="which have 6 numbers, but 'dimensions' has 6"):
        loss(pairs=toy_pairs())


@pytest.mark.parametrize("dimensions", [(4, 4), (0,), (100_000,)])
def test_lengths_are_bounded(dimensions):
    with pytest.raises(ValueError, match=r"'dimensions' .*1 to 65,536, got "):
        MatryoshkaConfig(dimensions=dimensions)


def composed(*settings):
    return compose(ComposeRequest(loss="matryoshka", settings=settings), PARTS)


def test_a_recipe_chooses_the_wrapped_loss_and_its_settings():
    recipe = composed("finetune.loss.loss=pairwise", "finetune.loss.loss.temperature=0.5", "encoder.pooling=mean")
    check(recipe, PARTS.registry)
    assert recipe.finetune.loss.config.loss.use == "pairwise"
    assert recipe.finetune.loss.config.loss.config.temperature == 0.5
    assert recipe.similarity == "dot", "that of the wrapped loss"
    assert not uses_in_batch_negatives(recipe.finetune.loss)
    assert recipe_from_table(parse_toml(recipe_toml(recipe), "recipe"), PARTS.registry) == recipe
    paths = {one.path: one for one in setting_paths(recipe, PARTS.registry)}
    assert paths["finetune.loss.loss.use"].meaning.startswith("the loss: ")
    assert paths["finetune.loss.loss.temperature"].value == 0.5


def test_the_trial_knows_how_long_the_vectors_are():
    recipe = composed("finetune.loss.dimensions=[64]", "encoder.hidden=128", "pretrain=none")
    try_parts(recipe, PARTS.registry)
    with pytest.raises(DrkitError, match="which have 128 numbers, but 'dimensions' has 256"):
        try_parts(composed("finetune.loss.dimensions=[256]", "encoder.hidden=128", "pretrain=none"), PARTS.registry)


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("kl-distillation", "'kl-distillation' .*'teacher'"),
        ("listwise", r"loss 'listwise' needs groups; fine-tuning provides pairs.* @ finetune.loss.loss"),
        ("mlm", r"loss 'mlm' needs token_states; .* @ finetune.loss.loss"),
    ],
)
def test_a_wrapped_loss_that_cannot_work_is_refused(inner, said):
    with pytest.raises(ProblemsError, match=said):
        check(composed(f"finetune.loss.loss={inner}"), PARTS.registry)


def test_a_wrapped_loss_that_needs_a_teacher_gets_it():
    loss = MatryoshkaLoss(MatryoshkaConfig(Choice("margin-mse", MarginMseConfig()), (2,)))
    assert "unscored_2" in loss(pairs=toy_pairs()).metrics
    with pytest.raises(DrkitError, match=r"column 'teacher' \(columns: none\)"):
        loss(pairs=attrs.evolve(toy_pairs(), columns={}))
