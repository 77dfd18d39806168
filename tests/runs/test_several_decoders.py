"""The recipes with several decoders on the page about contexts: composed, checked, and run at the quick scale."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from attrs import evolve

from drkit.core.files import read_log
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.recipe.check import check
from drkit.recipe.compose import compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.train.checkpoints import saved_part
from tests.cli.asked import request_of

PARTS = installed()
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "contexts.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## Several decoders")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^drkit compose (.+)$", SECTION, flags=re.MULTILINE)
TINY = (
    *("encoder.vocab_size=200", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=24", "encoder.query_length=16", "pretrain.max_steps=3", "finetune=none"),
    *("pretrain.probe.every=3", "evaluation.bm25=false", "evaluation.depth=20"),
)


def recipe_of(options, *settings, **choices):
    asked = request_of(shlex.split(options))
    recipe = compose(evolve(asked, settings=(*asked.settings, *settings), **choices), PARTS)
    check(recipe, PARTS.registry)
    return recipe


def test_the_page_has_the_recipes():
    assert len(COMMANDS) == 5


@pytest.mark.parametrize("options", COMMANDS)
@pytest.mark.parametrize("scale", ["paper", "small", "quick"])
def test_each_is_composed_at_every_scale(options, scale):
    pretrain = recipe_of(options, scale=scale).pretrain
    assert len(pretrain.decoders) == options.count("--decoder ")
    assert {side for side, _ in pretrain.losses().values()} >= pretrain.decoders.keys()


def test_master_has_three_contexts_and_weights_are_those_of_the_page():
    master, bag, *_ = (recipe_of(options).pretrain for options in COMMANDS)
    assert [task.context.use for task in master.decoders.values()] == ["self", "span", "query"]
    assert [*bag.losses()] == ["encoder_mlm", "main_mlm", "bow_bow-reconstruction"]
    assert bag.losses()["bow_bow-reconstruction"][1].weight == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("options", COMMANDS)
def test_each_runs_at_the_quick_scale(options, beir, tmp_path):
    recipe = recipe_of(options, *TINY, scale="quick", collection=f"beir:{beir}")
    run, registry = tmp_path / "run", PARTS.registry
    execute(plan(recipe, registry).stages, run, recipe, registry=registry, progress=Silent())
    (log, *_) = read_log(run / "pretrained" / "log.jsonl")
    assert {f"{name}_loss" for name in recipe.pretrain.losses()} <= log.keys()
    for name, task in recipe.pretrain.decoders.items():
        found = saved_part(run / "pretrained" / f"decoder-{name}.safetensors")
        assert found["use"] == task.decoder.use
    assert {probe["step"] for probe in read_log(run / "pretrained" / "probes.jsonl")} == {0, 3}
