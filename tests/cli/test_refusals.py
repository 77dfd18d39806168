"""What the command line refuses before it does anything: one message, exit code 2."""

from __future__ import annotations

import re

import pytest

from drkit.commands.inputs import find_queries
from drkit.core.types import Passage
from drkit.errors import DrkitError
from drkit.search.blocks import rank_to_run
from drkit.search.bm25 import Bm25Retriever
from drkit_pydocs import PydocsCollection


@pytest.fixture
def refused(run_drkit):
    """Standard error of a command that must end with 2."""

    def call(*arguments):
        code, _, err = run_drkit(*arguments)
        assert code == 2
        return err

    return call


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compose", "--collection", "", "--dry-run"], "empty (after --collection)"),
        (["compose", "--encoder=", "--dry-run"], "empty (--encoder=)"),
        (["search", "", "words"], "empty (after search)"),
        (["run", ""], "empty (after run)"),
        (["evaluate", "runs/R", "--backend", "openvino"], "--encoder"),
        (["queries", "--model", "m", "--top-p", "1.5", "-o", "q.jsonl"], "0<x<=1"),
        (["compose", "--name", "../../escape", "--dry-run"], "'../../escape'"),
        (["compose", "--name", "a\ud800", "--dry-run"], "not text"),
        (["compose", "--name", "a\0", "--dry-run"], "not text"),
        (["compose", "--run-dir", "x" * 5000, "--dry-run"], "4,095 bytes"),
        (["compose", "--encoder", "x/" * 2500, "--dry-run"], "4,095 bytes"),
        (["compose", "--collection", f"beir:{'x' * 5000}", "--dry-run"], "4,095 bytes"),
        (["compose", "--collection", f"jsonl:{'x' * 300}", "--dry-run"], "4,095 bytes"),
        (["compose", "--encoder", "~nobody-of-this-name/x", "--dry-run"], "home"),
        (["search", "x" * 5000, "words"], "4,095 bytes"),
        (["encode", "--encoder", "y" * 5000, "--collection", "pydocs", "-o", "v"], "4,095 bytes"),
        (["mine", "--miner", "bm25", "--collection", "y" * 5000, "-o", "v"], "4,095 bytes"),
        (["mine", "--collection", "c", "--miner", "bm25", "--seed", "9" * 23, "-o", "n"], "99999"),
        (["search", "r", "words", "-k", "9" * 23], "99999"),
    ],
)
def test_a_users_mistake_is_one_message(arguments, said, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    error = refused(*arguments)
    assert said in error
    assert len(error) < 700
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["encode", "--encoder", "./nowhere"],
        ["evaluate", "--encoder", "./nowhere"],
        ["mine", "--miner", "dense", "--encoder", "./nowhere"],
        ["mine", "--miner", "bm25", "--miner", "cross-encoder-filter", "--reranker", "./nowhere"],
        ["queries", "--model", "./nowhere"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_missing_model_is_refused_before_the_collection_is_read(arguments, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PydocsCollection, "_documented", property(lambda _: pytest.fail("the collection was read")))
    output = [] if arguments[0] == "evaluate" else ["-o", "out.jsonl"]
    assert "nowhere" in refused(*arguments, "--collection", "pydocs", *output)


def test_a_recipe_from_elsewhere_cannot_choose_a_folder_outside_runs(tmp_path, monkeypatch, run_drkit, refused):
    monkeypatch.chdir(tmp_path)
    assert run_drkit("compose", "-o", "recipe.toml", "--name", "inside", "--dry-run")[0] == 0
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('name = "inside"', 'name = "../../escape"'))
    assert "'../../escape'" in refused("run", recipe, "--dry-run")


def test_what_transformers_would_refuse_after_hours_is_refused_in_the_plan(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    given = ["--set", "finetune.lr_scheduler_type=nosuch", "--set", "pretrain.lr_scheduler_type=neither"]
    error = refused("compose", "--dry-run", *given)
    assert "2 problems" in error
    assert re.search("nosuch is not a valid SchedulerType.* @ finetune", error)
    assert re.search("neither is not a valid SchedulerType.* @ pretrain", error)
    error = refused("compose", "--dry-run", "--set", "pretrain.arguments={no_such=1}")
    assert re.search("'no_such'.* @ pretrain.arguments", error)
    assert not list(tmp_path.iterdir())


def test_a_file_without_queries_makes_no_empty_run(tmp_path):
    (tmp_path / "queries.tsv").write_text("")
    retriever = Bm25Retriever().index([Passage("d", "", "words")])
    with pytest.raises(DrkitError, match="no queries"):
        rank_to_run(retriever, find_queries(tmp_path / "queries.tsv"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
