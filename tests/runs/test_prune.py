"""A finished run without the weights that nothing reads any more: still finished, still searched, and able to go on."""

from __future__ import annotations

import shutil

import pytest

from drkit.commands import open_encoder, prune_run
from drkit.commands.prune import disk_use
from drkit.core.progress import Silent
from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import read_recipe
from drkit.runs.execute import execute
from drkit.runs.manifest import load_manifest, read_manifest
from drkit.runs.plan import plan
from drkit.runs.survey import State, last_checkpoint, survey
from drkit.search import Retriever
from tests.refusals import says
from tests.runs.conftest import drkit

PARTS = installed()
TINY = (
    *("encoder.vocab_size=120", "encoder.hidden=16", "encoder.heads=2", "encoder.intermediate=32"),
    *("encoder.passage_length=24", "encoder.query_length=16", "evaluation.depth=20"),
    *("pretrain.max_steps=4", "pretrain.per_device_train_batch_size=4", "pretrain.probe.every=0"),
    *("finetune.max_steps=4", "finetune.per_device_train_batch_size=4"),
)


class Begun(Silent):
    """Keeps why each stage was begun."""

    def __init__(self):
        self.reasons = {}

    def begin(self, stage, summary, reason=""):
        self.reasons[stage] = reason


def go(beir, run, *settings):
    request = ComposeRequest(
        masker="uniform",
        decoder="mlm",
        pipeline="two-stage",
        collection=f"beir:{beir}",
        settings=(*TINY, *settings),
    )
    recipe, begun = compose(request, PARTS), Begun()
    execute(plan(recipe, PARTS.registry).stages, run, recipe, registry=PARTS.registry, progress=begun, redo=True)
    return begun.reasons


def stages(beir, run):
    request = ComposeRequest(
        masker="uniform", decoder="mlm", pipeline="two-stage", collection=f"beir:{beir}", settings=TINY
    )
    return {found.stage.name: found for found in survey(plan(compose(request, PARTS), PARTS.registry).stages, run)}


@pytest.fixture(scope="module")
def whole(beir, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "whole"
    go(beir, run)
    return run


def test_a_pruned_run_is_finished_and_searched_as_before(beir, whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shown = prune_run(run, PARTS.registry, dry_run=True)
    assert all(
        read_manifest(folder) == read_manifest(run / folder.name) for folder in whole.iterdir() if folder.is_dir()
    )
    made = plan(read_recipe(run / "recipe.toml", PARTS.registry), PARTS.registry).stages
    size, freed = disk_use(run, made, {stage.name: read_manifest(run / stage.name) for stage in made})
    assert freed == sum(one.bytes for one in shown)
    assert size <= sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    before = sum(path.stat().st_size for path in run.rglob("*") if path.name != "manifest.json")
    out = drkit("prune", run).stdout
    assert prune_run(run, PARTS.registry) == [], "nothing is left to prune"
    after = sum(path.stat().st_size for path in run.rglob("*") if path.name != "manifest.json")
    assert sum(one.bytes for one in shown) == before - after > 0
    assert f"freed {(before - after) / 1e6:,.1f} MB" in out
    exported = last_checkpoint(run).name
    trained = {"initial", "labels-only", "retriever-1", "retriever-2"}
    searched = {f"index-{name}" for name in trained if name != "initial"}
    assert {one.stage for one in shown} == (trained | searched) - {exported}
    found = stages(beir, run)
    assert {name for name, one in found.items() if one.state is State.PRUNED} == {one.stage for one in shown}
    assert all(one.is_finished for one in found.values())
    status = drkit("status", run, "--verify").stdout
    assert status.count("removed by `drkit prune`") == len(shown)
    assert go(beir, run) == {}
    hits = [Retriever.load(folder).search(["what is topic3 about"], 5) for folder in (whole, run)]
    assert hits[0] == hits[1]
    with pytest.raises(DrkitError, match=r"/initial .*`drkit prune`.*drkit run "):
        open_encoder(run / min(trained - {exported}))


def test_a_pruned_run_goes_on_as_one_that_was_not_pruned(beir, whole, tmp_path):
    pruned, other = tmp_path / "pruned", tmp_path / "other"
    for run in (pruned, other):
        shutil.copytree(whole, run)
    prune_run(pruned, PARTS.registry)
    assert set(go(beir, pruned, "evaluation.measures=['RR@5']")) == set(go(beir, other, "evaluation.measures=['RR@5']"))
    changed = ("evaluation.measures=['RR@5']", "finetune.rounds.1.learning_rate=5e-4")
    expected, begun = go(beir, other, *changed), go(beir, pruned, *changed)
    assert set(expected) < set(begun)
    extra = set(begun) - set(expected)
    assert "labels-only" in extra or "index-labels-only" in extra
    assert all("pruned" in begun[name] for name in extra)
    for name in (*expected, *extra):
        one, two = load_manifest(pruned / name), load_manifest(other / name)
        assert one.content() == two.content(), name


def test_a_run_that_is_not_finished_is_not_pruned(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "evaluation")
    refused = drkit("prune", run, check=False)
    assert refused.returncode == 2
    assert says(refused.stderr, str(run), "evaluation: to do", f"`drkit run {run}`")
    assert (run / "retriever-1" / "model.safetensors").is_file()
    assert says(drkit("prune", tmp_path, check=False).stderr, str(tmp_path), "recipe.toml")
