"""A stranger's masker whose masked positions a module of its own fills, beside what the run makes for it."""

import attrs
import pytest
import torch
from torch import nn

from drkit.core.registry import Registry, installed
from drkit.core.spec import Choice, ComponentSpec, NoSettings
from drkit.core.types import StepOutput
from drkit.errors import DrkitError
from drkit.maskers import UniformConfig, UniformMasker
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.trial import try_parts

PARTS = installed()


class OneWord(nn.Module):
    """Fills masked positions with one word, whose embedding it could learn."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, view, tokens, *, learn):
        filled = attrs.evolve(view, ids=torch.where(view.noise >= 0, 7, view.ids))
        step = StepOutput(loss=self.weight, metrics={"targets": torch.tensor(1)})
        return filled, step if learn else None


class SavedWord(OneWord):
    learns = True

    def save(self, folder):
        torch.save(self.state_dict(), folder / "word.pt")

    def load(self, folder):
        self.load_state_dict(torch.load(folder / "word.pt"))


class LostWord(SavedWord):
    def load(self, folder):
        raise FileNotFoundError(folder.name)


class FillsByOneWord:
    """A masker with noise at hidden positions; `replacer` returns a module of its class."""

    word = OneWord

    def __init__(self, _config, context):
        self.masker = UniformMasker(UniformConfig(mask_token_share=(1.0, 0.0, 0.0)), context)

    def __call__(self, tokens, rng, rows=0, nested=None):
        view = self.masker(tokens, rng, rows, nested)
        noise = torch.where(view.labels != -100, 0.5, -1.0)
        return view if rows else attrs.evolve(view, labels=torch.where(tokens.maskable, tokens.ids, -100), noise=noise)

    def replacer(self, context):
        assert context.generator is not None
        return self.word()


class FillsAndLearns(FillsByOneWord):
    word = SavedWord


class FillsAndForgets(FillsByOneWord):
    word = LostWord


def tried(name):
    """Try the parts of SimLM with the masker of this name for both sides; what it requires is in its spec alone."""
    spec = ComponentSpec(
        "masker",
        "one-word",
        f"{__name__}:{name}",
        NoSettings,
        "Fills masked positions with one word",
        requires=("generator",),
        provides=("view", "replaced"),
        provider="mine 1.0",
    )
    registry, recipe = Registry([*PARTS.registry, spec]), compose(ComposeRequest(paper="simlm"), PARTS)
    chosen = Choice("one-word", NoSettings())
    sides = recipe.pretrain.decoders.items()
    pretrain = attrs.evolve(
        recipe.pretrain,
        encoder=attrs.evolve(recipe.pretrain.encoder, masker=chosen),
        decoders={name: attrs.evolve(task, masker=chosen) for name, task in sides},
    )
    recipe = attrs.evolve(recipe, pretrain=pretrain)
    check(recipe, registry)
    try_parts(recipe, registry)


def test_one_that_is_trained_and_saved_passes():
    tried("FillsAndLearns")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FillsByOneWord", r"masker 'one-word' \(mine 1.0\): .*must be a LearningReplacer: `learns`, save\(folder\)"),
        ("FillsAndForgets", r"masker 'one-word' \(mine 1.0\) failed .*saved and loaded.*FileNotFoundError: generator"),
    ],
)
def test_one_that_cannot_be_saved_is_named_before_the_run(name, said):
    with pytest.raises(DrkitError, match=said):
        tried(name)
