"""RetroMAE's table 5 as its page has it: a re-ranker of the ANCE retriever's negatives, which then learns from it."""

from __future__ import annotations

import shlex

import pytest

from drkit.commands.records import open_run
from drkit.core.registry import installed
from drkit.runs.stage import StageOutput
from tests.papers.test_commands import composed, rows_of
from tests.rerank.toys import checkpoint
from tests.runs.conftest import beir, drkit  # noqa: F401

(TABLE_5,) = [row for row in rows_of("retromae") if "kl-distillation" in row]
TINY = (
    "pretrain.max_steps=3",
    "pretrain.batch_size=4",
    "finetune.max_steps=3",
    "finetune.rounds.2.max_steps=3",
    "finetune.batch_size=4",
    "finetune.negatives=2",
    "finetune.rounds.2.negatives=2",
    "finetune.rounds.0.miners.0.depth=8",
    "finetune.baselines=[]",
    "finetune.logging_steps=1",
    "reranker.max_steps=3",
    "reranker.batch_size=4",
    "reranker.negatives=3",
    "reranker.max_length=32",
    "encoder.passage_length=24",
    "encoder.query_length=16",
    "evaluation.depth=20",
    'evaluation.measures=["RR@10"]',
)


@pytest.fixture(scope="module")
def run(beir, tmp_path_factory):  # noqa: F811
    """A run of the row at toy sizes, on a toy collection, from a toy encoder."""
    folder = tmp_path_factory.mktemp("table-5")
    options = TABLE_5.replace("beir:FOLDER", f"beir:{beir}")
    options = options.replace("bert-base-uncased", str(checkpoint(folder / "lm")))
    drkit("compose", *shlex.split(options), *(f"--set={setting}" for setting in TINY), "--run-dir", folder / "run")
    return open_run(folder / "run", installed())


def test_the_retriever_learns_from_the_divergence_alone(run):
    loss = run.recipe.finetune.rounds[-1].loss
    assert (loss.use, loss.config.alpha) == ("kl-distillation", 0.0)
    lines = [line for line in run.log("retriever-distilled", "log.jsonl") if "loss" in line]
    assert lines
    assert all(line["loss"] == pytest.approx(line["kl"], rel=1e-3) for line in lines)
    assert {"reranker", "retriever-distilled"} < run.scores.keys()


def test_the_teacher_reads_what_the_mining_retriever_finds():
    from drkit.runs.plan import plan

    recipe = composed(TABLE_5.replace("--collection beir:FOLDER", "--collection pydocs"))
    stages = {stage.name: stage for stage in plan(recipe, installed().registry).stages}
    assert [miner.use for miner in recipe.finetune.rounds[1].miners] == ["refresh"]
    assert stages["retriever-2"].inputs["start"] == StageOutput("retriever-1")
    assert stages[stages["reranker"].inputs["negatives"].stage].inputs["encoder"] == StageOutput("retriever-2")
    assert stages["retriever-distilled"].inputs["start"] == StageOutput("retriever-2")
    assert stages["retriever-distilled"].inputs["column/teacher"] == StageOutput("teacher-retriever-distilled")
    assert stages["teacher-retriever-distilled"].inputs["reranker"] == StageOutput("reranker")
