"""Poolings of their own for pre-training, fine-tuning and its rounds: trained, saved, searched and exported."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from drkit.encoders.learned_pooling import saved_pooling
from drkit.errors import ProblemsError
from drkit.recipe.check import check
from drkit.recipe.toml import parse_toml, recipe_from_table, recipe_toml
from drkit.runs.trial import try_parts
from drkit.search import Retriever, TextEncoder
from tests.encoders.test_learned_pooling import beir as beir
from tests.encoders.test_learned_pooling import composed, executed
from tests.encoders.test_learned_pooling import parts as parts

PLAIN = ("encoder.pooling=cls", "encoder.pooling_settings={}")


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def run(parts, beir, tmp_path_factory):
    settings = ("pretrain.encoder.pooling=mean", "finetune.pooling=attentive", "finetune.pooling.heads=3")
    one, two = '{name="retriever-1", miners=["bm25"]}', '{name="second", start="previous", pooling="max"}'
    rounds = (f"finetune.rounds=[{one}, {two}]",)
    recipe = composed(parts, beir, *PLAIN, *settings, *rounds, "evaluation.export=last")
    check(recipe, parts.registry)
    try_parts(recipe, parts.registry)
    assert recipe_from_table(parse_toml(recipe_toml(recipe), "text"), parts.registry) == recipe
    return executed(parts, recipe, tmp_path_factory.mktemp("own") / "run")


def test_each_training_has_its_own_and_the_export_that_of_its_round(run):
    names = [saved_pooling(run / stage) for stage in ("initial", "pretrained", "retriever-1", "second")]
    assert names == ["", "mean", "attentive", "max"]
    encoder = TextEncoder.load(run / "encoder")
    assert encoder.card.pooling == "max"
    assert Retriever.load(run).search(["grace wrote"], 1)[0].doc_ids[0] == "c4"


def test_a_round_is_trained_like_one_of_a_run_whose_encoder_has_its_pooling(parts, beir, tmp_path):
    """The second run starts from the pre-trained checkpoint of the first, with another pooling."""
    one = executed(parts, composed(parts, beir, *PLAIN, "finetune.pooling=max"), tmp_path / "one")
    start = (f"encoder.pretrained={one / 'pretrained'}", "encoder.declared=ignore", "pretrain=none")
    other = composed(parts, beir, "encoder.pooling=max", "encoder.pooling_settings={}", *start)
    two = executed(parts, other, tmp_path / "two")
    for name, weight in weights(one / "retriever-1").items():
        torch.testing.assert_close(weight, weights(two / "retriever-1")[name], rtol=0, atol=0)
    texts = ["ada proved", "grace wrote a compiler"]
    vectors = [TextEncoder.load(folder / "encoder").encode_passages(texts) for folder in (one, two)]
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["finetune.pooling=weighted"], r"'weighted' .*\(cls and weighted\): .*everywhere, or nowhere"),
        (["pretrain.encoder.pooling=lexical"], r"'lexical' makes scores of words, which no decoder reads"),
        (["finetune.pooling=lexical", "finetune.encoders=separate"], "shared encoder"),
        (["finetune.rounds.0.pooling=lexical", "encoder.lm_head=tied"], "the head 'tied'"),
        (["encoder.layers=0", "encoder.pooling=mean", "encoder.lm_head=tied", "finetune.pooling=max"], "'max' pooling"),
        (["finetune.pooling=atentive"], "'atentive'; .*'attentive'"),
        (["finetune.pooling=attentive", "finetune.pooling.heads=0"], r"'heads' must be >= 1.*@ finetune\.pooling"),
    ],
)
def test_what_cannot_be_is_refused_in_the_plan(parts, beir, settings, problem):
    with pytest.raises(ProblemsError, match=problem):
        check(composed(parts, beir, *PLAIN, *settings), parts.registry)
