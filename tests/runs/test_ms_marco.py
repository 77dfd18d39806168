"""The lines of docs/guide/ms-marco.md, planned by MS MARCO's ids and sizes, without its texts."""

from __future__ import annotations

import re

import pytest

from drkit.core.registry import installed
from drkit.recipe.schema import FROM_INITIAL, LABELS_ONLY
from drkit.recipe.toml import read_recipe
from drkit.runs.attribution import build_collection
from drkit.runs.costs import estimated_size
from tests.runs import ms_marco_page
from tests.warm import warm_process

CARD = 80e9
# The steps of pre-training and of fine-tuning that the papers state.
STEPS = {
    "simlm": ("2,048", "64"),
    "retromae": ("256", "64"),
    "cdmae": ("2,048", "64"),
    "cpdae": ("64", "64"),
    "cotmae-qac": ("16,384", "64"),
}


@pytest.fixture(scope="module")
def plans():
    return ms_marco_page.plans()


def test_the_tables_are_those_of_the_plans():
    text = ms_marco_page.PAGE.read_text(encoding="utf-8")
    assert text == ms_marco_page.page(), "run: python -m tests.runs.ms_marco_page"


def test_every_paper_has_a_line_for_one_machine_and_for_two(plans):
    assert {paper: [*by_processes] for paper, by_processes in plans.items()} == {paper: [8, 16] for paper in STEPS}


@pytest.mark.parametrize("paper", STEPS)
def test_steps_are_global_and_fit_a_card(plans, paper):
    for processes, made in plans[paper].items():
        found = ms_marco_page.trainings(made)
        for stage, expected in zip(("pretrained", "retriever-1"), STEPS[paper], strict=True):
            assert found[stage][0].startswith(f"{expected}: {processes} processes x "), (processes, stage)
        assert max(memory for _, memory in found.values()) < CARD


def test_the_recipe_for_one_gpu_fits_it():
    recipe = ms_marco_page.PAGE.parents[1] / "recipes" / "msmarco.toml"
    found = ms_marco_page.trainings(ms_marco_page.plan(1, "run", str(recipe)))
    assert {"retriever-1", "retriever-2", "reranker", "retriever-distilled"} < {*found}
    assert max(memory for _, memory in found.values()) < CARD


@pytest.mark.parametrize("paper", STEPS)
def test_no_row_is_made_that_the_paper_does_not_have(plans, paper):
    stages = {stage["stage"] for stage in plans[paper][8]["stages"]}
    assert stages.isdisjoint({LABELS_ONLY, "as-it-is", f"index-{FROM_INITIAL}"})
    assert not [stage for stage in stages if "=" in stage]


def test_a_share_of_the_training_queries_is_dev():
    registry = installed().registry
    recipe = read_recipe(ms_marco_page.PAGE.parents[1] / "recipes" / "msmarco.toml", registry)
    size = estimated_size(recipe, build_collection(recipe, registry))
    assert size.queries == {"train": 502_436, "dev": 503, "test": 6980}


def test_mining_by_bm25_has_its_index_in_memory(plans):
    (stage,) = (one for one in plans["simlm"][8]["stages"] if one["stage"] == "negatives-retriever-1")
    assert "bm25" in stage["does"]
    assert stage["memory"] == pytest.approx(23.9e9, rel=0.01)


def test_texts_that_are_here_are_not_downloaded(plans, tmp_path):
    assert "irds:msmarco-passage" in plans["simlm"][8]["downloads"]
    home = tmp_path / "msmarco-passage"
    home.mkdir()
    (home / "collection.tsv").write_text("0\ta text\n" * 500)
    line = ("reproduce", "simlm", "tables 2, 4", "--dry-run")
    shown = warm_process().drkit(*line, environment={"IR_DATASETS_HOME": str(tmp_path), "WORLD_SIZE": "8"})
    assert shown["code"] == 0, shown["err"]
    said = " ".join(shown["out"].split())
    assert re.search(
        r"downloads bert-base-uncased, google/electra-base-generator, .* \(not on this machine yet\)", said
    )
