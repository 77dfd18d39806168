"""A decoder that reads the encoder's token states: declared, checked, tried and trained."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from drkit.core.registry import Registry, installed
from drkit.core.spec import Choice, ComponentSpec, NoSettings
from drkit.core.types import TokenStates
from drkit.decoders.layers import uncomputed_states
from drkit.encoders.heads import seeded
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.trial import try_parts
from drkit.testing import check_decoder
from drkit.testing.specs import ContractError


class Reader(torch.nn.Module):
    """Predicts what its view hides from the state of the same token, and no vector."""

    def __init__(self, _config, context):
        super().__init__()
        with seeded(context.seed, "decoder"):
            self.map = torch.nn.Linear(context.backbone.hidden, context.backbone.hidden)

    def targets(self, inputs):
        return {"token_states": uncomputed_states(inputs.view.labels)}

    def forward(self, inputs, heads):
        hidden = self.map(inputs.encoded.hidden)
        return {"token_states": TokenStates(hidden[inputs.view.labels != -100], self._labels(inputs), heads)}

    @staticmethod
    def _labels(inputs):
        return inputs.view.labels[inputs.view.labels != -100]


def spec(*receives):
    settings = {"target": "tests.parts.test_token_states:Reader", "config": NoSettings, "provides": ("token_states",)}
    return ComponentSpec(kind="decoder", name="reader", summary="Reads states", receives=receives, **settings)


def recipe_with(*receives):
    registry = Registry([*installed().registry, spec(*receives)])
    recipe = compose(ComposeRequest(decoder=("mlm",)), installed())
    task = evolve(recipe.pretrain.decoders["main"], decoder=Choice("reader", NoSettings()))
    return evolve(recipe, pretrain=evolve(recipe.pretrain, decoders={"main": task})), registry


def test_one_that_declares_it_passes_the_contract_the_check_and_the_trial():
    check_decoder(spec("view", "hidden"))
    recipe, registry = recipe_with("view", "hidden")
    check(recipe, registry)
    try_parts(recipe, registry)


def test_one_that_does_not_is_told_that_no_gradient_reaches_the_vector():
    with pytest.raises(ContractError, match="no gradient reaches the bottleneck"):
        check_decoder(spec("view"))
    with pytest.raises(DrkitError, match=r"reader.*no gradient reaches the bottleneck"):
        try_parts(*recipe_with("view"))


def test_a_misspelt_name_is_refused_in_the_plan():
    with pytest.raises(ProblemsError, match=r"'reader' needs hiden; .*'hidden'"):
        check(*recipe_with("view", "hiden"))
