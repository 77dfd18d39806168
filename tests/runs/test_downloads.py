"""What a plan says will be downloaded, and what stages need: of collections and models that are not here."""

from __future__ import annotations

import json

import pytest

from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.downloads import downloads
from tests.runs.conftest import drkit

PARTS = installed()


def recipe(*settings, **chosen):
    return compose(ComposeRequest(settings=settings, **chosen), PARTS)


@pytest.fixture(autouse=True)
def nothing_here(monkeypatch, tmp_path):
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)


def test_a_collection_without_texts_is_downloaded(tmp_path):
    made = recipe(collection="irds:vaswani")
    assert downloads(made) == ["irds:vaswani"]
    (tmp_path / "vaswani").mkdir()
    (tmp_path / "vaswani" / "irds_version.txt").write_text("0.6")
    assert downloads(made) == ["irds:vaswani"]
    (tmp_path / "vaswani" / "docs.txt").write_text("text " * 999)
    assert downloads(made) == []


def test_models_are_those_of_the_hub_wherever_a_recipe_names_them(tmp_path):
    made = recipe(paper="simlm", encoder="an/encoder", collection="irds:vaswani")
    models = {"an/encoder", "google/electra-base-generator", "google/electra-base-discriminator"}
    assert {*downloads(made)} == {"irds:vaswani", *models}
    (tmp_path / "model").mkdir()
    here = recipe("reranker=none", "pretrain=none", encoder=str(tmp_path / "model"), collection="irds:vaswani")
    assert downloads(here) == ["irds:vaswani"]


def test_a_teacher_is_downloaded():
    made = recipe("finetune.rounds.0.teacher=org/scores", "pretrain=none", collection="irds:vaswani")
    assert downloads(made) == ["irds:vaswani", "org/scores"]


def test_texts_of_pretraining_are_downloaded_too():
    made = recipe('pretrain.texts={more={use="irds", dataset="cranfield"}}', collection="irds:vaswani")
    assert downloads(made) == ["irds:vaswani", "irds:cranfield"]


def test_a_plan_says_what_each_stage_needs(tmp_path):
    given = ("--collection", "irds:vaswani", "--paper", "retromae", "--scale", "small", "--dry-run")
    found = json.loads(drkit("compose", *given, "--json", IR_DATASETS_HOME=str(tmp_path)).stdout)
    assert found["downloads"] == ["irds:vaswani"]
    needs = {one["stage"]: (one["memory"], one["disk"]) for one in found["stages"]}
    assert found["cost"]["disk"] == pytest.approx(sum(disk or 0 for _, disk in needs.values()))
    assert needs["pretrained"][0] > 1e8
    assert needs["encoder"][1] == needs["initial"][1] > 1e6  # a copy of the weights
    assert needs["evaluation"] == (None, None)  # too little to count
    shown = drkit("compose", *given, "-v", IR_DATASETS_HOME=str(tmp_path)).stdout
    assert "irds:vaswani (not on this machine yet)" in " ".join(shown.split())
    assert "GB of memory" in shown.split("takes", 1)[1]
