"""The trial of parts: drkit's own all pass, with every recipe and pipeline."""

import random
import time

import numpy as np
import pytest
import torch

from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.trial import try_parts
from tests.runs.test_matrix import some_pairs

PARTS = installed()


@pytest.mark.parametrize("paper", sorted(PARTS.recipes))
def test_every_recipe_passes(paper):
    try_parts(compose(ComposeRequest(paper=paper), PARTS), PARTS.registry)


@pytest.mark.parametrize("pipeline", [None, *PARTS.pipelines])
def test_every_pipeline_passes(pipeline):
    try_parts(compose(ComposeRequest(pipeline=pipeline), PARTS), PARTS.registry)


def test_every_part_that_fits_the_default_recipe_passes():
    for masker, decoder, _ in some_pairs():
        try_parts(compose(ComposeRequest(masker=masker, decoder=decoder), PARTS), PARTS.registry)


@pytest.mark.parametrize("miner", PARTS.registry.names("miner"))
def test_every_miner_passes(miner):
    spec = PARTS.registry.get("miner", miner)
    named = f"{miner}:a-file" if miner == "run-file" else miner
    chain = ("bm25", named) if "candidates" in spec.receives else (named,)
    try_parts(compose(ComposeRequest(miners=chain), PARTS), PARTS.registry)


@pytest.mark.parametrize("paper", ["condenser", "cotmae", "simlm", "cdmae"])
def test_an_encoder_of_the_hub_is_not_fetched(paper):
    try_parts(compose(ComposeRequest(paper=paper, encoder="nobody/no-such-encoder"), PARTS), PARTS.registry)


def test_it_is_quick_and_leaves_random_numbers_alone():
    recipe = compose(ComposeRequest(), PARTS)
    try_parts(recipe, PARTS.registry)  # imports
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    started = time.process_time()
    try_parts(recipe, PARTS.registry)
    assert time.process_time() - started < 3
    assert torch.equal(before[0], torch.get_rng_state())
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]


def test_a_folder_of_an_unsupported_architecture_is_refused_in_the_plan(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    recipe = compose(ComposeRequest(encoder=str(tmp_path)), PARTS)
    with pytest.raises(DrkitError, match=r"'albert' .* @ encoder\.pretrained"):
        check(recipe, PARTS.registry)


@pytest.mark.parametrize("index", ["hnws", "IVF16,PQ7"])
def test_an_index_that_faiss_cannot_build_is_refused_before_the_first_stage(index):
    recipe = compose(ComposeRequest(settings=(f"evaluation.index={index}",)), PARTS)
    with pytest.raises(DrkitError, match=f"faiss .*kind '{index}'"):
        try_parts(recipe, PARTS.registry)
