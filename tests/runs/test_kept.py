"""Checkpoints that pre-training keeps at some steps, and the stages and rounds that read them."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from drkit.commands import export_checkpoint, open_encoder, prune_run
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.errors import DrkitError, ProblemsError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import recipe_from_table, recipe_table
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.runs.survey import UNFINISHED, survey
from drkit.train.checkpoints import load_encoder
from tests.runs.test_prune import TINY

PARTS = installed()
KEPT = ("pretrain.keep_steps=[2, 3]", "pretrain.save_steps=1", "pretrain.probe.every=4", "encoder.dropout=0.1")


def recipe_of(beir, *settings):
    request = ComposeRequest(
        masker="uniform", decoder="mlm", pipeline="dpr", collection=f"beir:{beir}", settings=(*TINY, *settings)
    )
    return compose(request, PARTS)


def with_rounds(recipe, *starts):
    """The recipe with a round from each start, all else equal."""
    table = recipe_table(recipe)
    first = table["finetune"]["rounds"][0]
    rounds = [{**first, "name": f"from-{index}", "start": start} for index, start in enumerate(starts)]
    table["finetune"]["rounds"] = rounds
    return recipe_from_table(table, PARTS.registry)


def go(recipe, run, progress=None):
    check(recipe, PARTS.registry)
    stages = plan(recipe, PARTS.registry).stages
    execute(stages, run, recipe, registry=PARTS.registry, progress=progress or Silent(), redo=True)
    return stages


@pytest.fixture(scope="module")
def kept(beir, tmp_path_factory):
    """A run with a round from each kept checkpoint and from the last one, and its recipe."""
    run = tmp_path_factory.mktemp("runs") / "kept"
    settings = (*KEPT, "evaluation.pretrained=true")
    recipe = with_rounds(recipe_of(beir, *settings), "pretrained@2", "pretrained@3", "pretrained")
    go(recipe, run)
    return run, recipe


def weights(folder):
    return load_encoder(folder, pooling="mean").state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_kept_checkpoint_is_that_of_the_step(kept):
    run, _ = kept
    two, three, last = (weights(run / name) for name in ("pretrained@2", "pretrained@3", "pretrained"))
    assert not same(two, three)
    assert not same(three, last)
    assert (run / "pretrained@2" / "decoder-main.safetensors").is_file()


def test_keeping_changes_no_weight(beir, kept, tmp_path):
    run, _ = kept
    go(recipe_of(beir, *KEPT[1:], "finetune=none"), tmp_path / "plain")
    assert same(weights(run / "pretrained"), weights(tmp_path / "plain" / "pretrained"))


def test_rounds_start_from_kept_checkpoints(kept):
    run, recipe = kept
    starts = {
        stage.name: str(stage.inputs["start"])
        for stage in plan(recipe, PARTS.registry).stages[:]
        if stage.name.startswith("from-")
    }
    assert starts == {"from-0": "pretrained@2", "from-1": "pretrained@3", "from-2": "pretrained"}
    assert not same(weights(run / "from-0"), weights(run / "from-1"))


def test_kept_checkpoints_are_probed_evaluated_and_drawn(kept):
    run, _ = kept
    probes = [json.loads(line)["step"] for line in (run / "pretrained" / "probes.jsonl").read_text().splitlines()]
    assert probes == [0, 2, 3, 4]
    results = json.loads((run / "evaluation" / "results.json").read_text())
    systems = {row["system"] for row in results["rows"]}
    assert {"pretrained@2", "pretrained@3", "pretrained", "from-0", "from-1", "from-2"} <= systems
    report = (run / "report" / "report.md").read_text()
    assert "Steps of pre-training" in report
    assert (run / "report" / "steps.png").is_file()


def test_a_kept_checkpoint_is_exported_and_trained_on(kept, beir, tmp_path):
    run, _ = kept
    export_checkpoint(run / "pretrained@2", tmp_path / "encoder")
    folders = (tmp_path / "encoder", run / "pretrained@2")
    exported, checkpoint = (open_encoder(folder, device="cpu") for folder in folders)
    assert exported.identity() == checkpoint.identity()
    start = compose(ComposeRequest(encoder=str(run / "pretrained@2"), collection=f"beir:{beir}"), PARTS).encoder
    assert (start.pooling, start.passage_length) == ("mean", 24)


def test_pruning_leaves_kept_checkpoints(kept, tmp_path):
    run, recipe = kept
    shutil.copytree(run, tmp_path / "run")
    pruned = {one.stage for one in prune_run(tmp_path / "run", PARTS.registry)}
    assert "from-0" in pruned
    assert not any(name.startswith("pretrained") for name in pruned)
    assert same(weights(run / "pretrained@2"), weights(tmp_path / "run" / "pretrained@2"))
    assert all(found.is_finished for found in survey(plan(recipe, PARTS.registry).stages, tmp_path / "run"))


class Interrupts(Silent):
    """Stops the training after a step."""

    def __init__(self, step):
        self.step = step

    def advance(self, done, total, unit, **_):
        if unit == "steps" and done == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_resumed_training_keeps_the_same(beir, kept, tmp_path, step):
    run, _ = kept
    recipe = recipe_of(beir, *KEPT, "finetune=none")
    with pytest.raises(KeyboardInterrupt):
        go(recipe, tmp_path / "run", Interrupts(step))
    assert (tmp_path / "run" / UNFINISHED / "pretrained").is_dir()
    go(recipe, tmp_path / "run")
    for name in ("pretrained@2", "pretrained@3", "pretrained"):
        assert same(weights(run / name), weights(tmp_path / "run" / name)), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("pretrain.keep_steps=[2, 9]",), "cannot keep the checkpoint of step 9: pre-training has 4 steps"),
        (("pretrain.keep_steps=[2]", "pretrain.probe.patience=3"), "set pretrain.probe.patience = 0"),
        (("pretrain.keep_steps=[2, 2]",), "each higher than the one before"),
        (("pretrain.keep_steps=[0, 2]",), "must be steps from 1"),
        (("pretrain.keep_steps=[2]", "finetune.rounds.0.start='pretrained@3'"), "did you mean 'pretrained@2'"),
    ],
)
def test_steps_that_cannot_be_kept_are_refused(beir, settings, message):
    with pytest.raises(ProblemsError, match=message.replace("(", r"\(")):
        check(recipe_of(beir, *settings), PARTS.registry)


def test_steps_beyond_the_epochs_are_refused_before_the_first_step(beir, tmp_path):
    settings = ("pretrain.max_steps=-1", "pretrain.num_train_epochs=1", "pretrain.keep_steps=[2, 9999]")
    with pytest.raises(DrkitError, match="cannot keep the checkpoint of step 9,999: the training has"):
        go(recipe_of(beir, *settings, "finetune=none"), tmp_path / "run")


def test_runs_without_kept_checkpoints_are_as_before(beir):
    stages = {stage.name: stage for stage in plan(recipe_of(beir), PARTS.registry).stages}
    assert not any("@" in name for name in stages)
    assert "pretrain.keep_steps" not in stages["pretrained"].identity(dict.fromkeys(stages["pretrained"].inputs, ""))
