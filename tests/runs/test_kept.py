"""Checkpoints that pre-training and rounds keep at some steps, and the stages and rounds that read them."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch

from drkit.commands import export_checkpoint, open_encoder, prune_run
from drkit.commands.records import open_run
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
from drkit_report.comparison import curves_of_systems
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
    (steps,) = curves_of_systems(open_run(run, PARTS))
    assert "steps of pre-training" in steps.title
    lines = {line.label: [step for step, _ in line.points] for line in steps.drawing.lines}
    assert lines["pre-trained"][-3:] == [2, 3, 4]
    assert {2, 3, 4} <= {*lines["fine-tuned"]}


def test_a_kept_checkpoint_is_exported_and_trained_on(kept, beir, tmp_path):
    run, _ = kept
    export_checkpoint(run / "pretrained@2", tmp_path / "encoder")
    folders = (tmp_path / "encoder", run / "pretrained@2")
    exported, checkpoint = (open_encoder(folder, device="cpu") for folder in folders)
    assert exported.identity() == checkpoint.identity()
    start = compose(ComposeRequest(encoder=str(run / "pretrained@2"), collection=f"beir:{beir}"), PARTS).encoder
    assert (start.pooling.use, start.passage_length) == ("mean", 24)


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
        (
            ("pretrain.keep_steps=[2, 9]",),
            "4 steps (pretrain.max_steps)",
        ),
        (("finetune.keep_steps=[9]",), "4 steps (finetune.rounds.0.max_steps)"),
        (
            ("finetune.rounds.0.keep_steps=[2]", "finetune.validation.patience=1"),
            "set finetune.validation.patience = 0 @ finetune.rounds.0.keep_steps",
        ),
        (("finetune.keep_steps=[2]", "finetune.rounds.0.start='retriever-1@2'"), "'retriever-1@2'"),
        (("pretrain.keep_steps=[2, 2]",), "higher"),
        (("pretrain.keep_steps=[0, 2]",), "steps from 1"),
        (("pretrain.keep_steps=[2]", "finetune.rounds.0.start='pretrained@3'"), "'pretrained@2'"),
    ],
)
def test_steps_that_cannot_be_kept_are_refused(beir, settings, message):
    with pytest.raises(ProblemsError, match=re.escape(message)):
        check(recipe_of(beir, *settings), PARTS.registry)


def test_steps_beyond_the_epochs_are_refused_before_the_first_step(beir, tmp_path):
    settings = ("pretrain.max_steps=-1", "pretrain.num_train_epochs=1", "pretrain.keep_steps=[2, 9999]")
    with pytest.raises(DrkitError, match=r"step 9,999: .*13 steps.*@ pretrain\.keep_steps"):
        go(recipe_of(beir, *settings, "finetune=none"), tmp_path / "run")


ROUNDS = ("pretrain=none", "finetune.baselines=[]", "finetune.save_steps=1", "finetune.encoders=separate")
ROUNDS += ("evaluation.start=false", "evaluation.bm25=false", "encoder.init_embeddings=random")


def rounds_of(beir, *settings):
    """A recipe whose second round starts from a checkpoint that the first has kept."""
    recipe = with_rounds(recipe_of(beir, *ROUNDS, *settings), "initial", "from-0@2")
    table = recipe_table(recipe)
    table["finetune"]["rounds"][0]["keep_steps"] = [2, 3]
    return recipe_from_table(table, PARTS.registry)


@pytest.mark.parametrize("step", [None, 2, 3])
def test_a_round_keeps_checkpoints_that_are_searched_and_started_from(beir, tmp_path, step):
    recipe, run = rounds_of(beir), tmp_path / "run"
    if step:
        with pytest.raises(KeyboardInterrupt):
            go(recipe, run, Interrupts(step))
    stages = {stage.name: stage for stage in go(recipe, run)}
    assert str(stages["from-1"].inputs["start"]) == "from-0@2"
    rows = json.loads((run / "evaluation" / "results.json").read_text())["rows"]
    assert [row["system"] for row in rows][:4] == ["from-0@2", "from-0@3", "from-0", "from-1"]
    for folder in ("", "passage_encoder"):
        two, three, last = (weights(run / name / folder) for name in ("from-0@2", "from-0@3", "from-0"))
        assert not same(two, three)
        assert not same(three, last)
    assert (
        open_encoder(run / "from-0@2", device="cpu").identity() != open_encoder(run / "from-0", device="cpu").identity()
    )


def test_every_draw_keeps_its_checkpoints(beir):
    recipe = recipe_of(beir, *ROUNDS, "finetune.keep_steps=[2]", "finetune.rounds.0.draws=2")
    made = {stage.name: stage for stage in plan(recipe, PARTS.registry).stages}
    assert {"retriever-1-draw-1@2", "retriever-1-draw-2@2"} <= made.keys()
    assert made["evaluation"].settings.draws["retriever-1@2"] == ("retriever-1-draw-1@2", "retriever-1-draw-2@2")
    assert settings_of(made["retriever-1-draw-1"])["finetune.keep_steps"] == [2]


def settings_of(stage):
    """The settings that the fingerprint of a stage covers."""
    return stage.identity(dict.fromkeys(stage.inputs, ""))["settings"]


def test_runs_without_kept_checkpoints_are_as_before(beir):
    stages = {stage.name: stage for stage in plan(recipe_of(beir), PARTS.registry).stages}
    assert not any("@" in name for name in stages)
    assert "pretrain.keep_steps" not in settings_of(stages["pretrained"])
    assert "finetune.keep_steps" not in settings_of(stages["retriever-1"])
