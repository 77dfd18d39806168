"""Distilling a teacher's vectors into an encoder over texts without labels, as a pre-training."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from drkit.core.registry import installed
from drkit.data.arrays import SignalValues
from drkit.errors import DrkitError
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.runs.plan import plan
from tests.refusals import says
from tests.runs.conftest import TINY, drkit
from tests.warm import warm_process

ROOT = Path(__file__).parents[2]
KEPT = [one for one in TINY if not any(word in one for word in ("packages", "vocab_size", "pipeline", "finetune."))]


def pretrained(beir, folder, loss, *settings, kill_after=0):
    arguments = (
        *("compose", "--collection", f"beir:{beir}", "--masker", "uniform", "--set=finetune=none"),
        *("--set=pretrain.decoders={}", "--set=pretrain.encoder.masker.ratio=0", *KEPT),
        *("--set=encoder.vocab_size=150", "--set=encoder.layers=1", "--set=evaluation.bm25=false"),
        f"--set=pretrain.encoder.losses={{distil={loss}}}",
        *(f"--set={one}" for one in settings),
        *("--run-dir", folder),
    )
    if kill_after:
        killing = ("pretrained", str(kill_after), *map(str, arguments))
        return warm_process().drkit(*killing, folder=ROOT, module="tests.runs.killed_training")
    return drkit(*arguments, check=False)


def teacher(beir, folder, size=6, without=(), by="id"):
    """A file of vectors of the passages, in another order; returns the vectors in the order of the collection."""
    rows = [json.loads(line) for line in (beir / "corpus.jsonl").open()]
    values = np.random.default_rng(1).normal(size=(len(rows), size)).astype(np.float32)
    kept = [n for n in reversed(range(len(rows))) if rows[n]["_id"] not in without]
    keys = [rows[n]["_id"] if by == "id" else f"{rows[n]['title']} {rows[n]['text']}" for n in kept]
    table = pa.table({by: keys, "vector": pa.array([values[n].tolist() for n in kept], pa.list_(pa.float32()))})
    pq.write_table(table, folder / "teacher.parquet")
    return values


@pytest.mark.parametrize(("part", "by"), [("cosine", "id"), ("mse", "text"), ("relation", "id")])
def test_texts_without_labels_learn_a_teachers_vectors(beir, tmp_path, part, by):
    values = teacher(beir, tmp_path, by=by)
    loss = f"{{use='text-vector-{part}', path='{tmp_path / 'teacher.parquet'}'}}"
    longer = ("pretrain.max_steps=60", "pretrain.learning_rate=0.003", "pretrain.logging_steps=10")
    done = pretrained(beir, tmp_path / "run", loss, *longer)
    assert done.returncode == 0, done.stderr
    signal = SignalValues.open(tmp_path / "run/signal-text-vectors/values")
    assert np.array_equal(signal.values, values)
    log = [json.loads(line) for line in (tmp_path / "run/pretrained/log.jsonl").read_text().splitlines()]
    losses = [line["encoder_distil_loss"] for line in log if "encoder_distil_loss" in line]
    assert losses[-1] < 0.97 * losses[0]
    has_projection = (tmp_path / "run/pretrained/loss-encoder_distil.safetensors").is_file()
    assert has_projection == (part != "relation")
    if has_projection:
        saved = load_file(tmp_path / "run/pretrained/loss-encoder_distil.safetensors")
        assert {name: tuple(weight.shape) for name, weight in saved.items()} == {
            "projection.weight": (6, 32),
            "projection.bias": (6,),
        }


def test_an_interrupted_distillation_ends_with_the_same_weights(beir, tmp_path):
    teacher(beir, tmp_path)
    loss = f"{{use='text-vector-cosine', path='{tmp_path / 'teacher.parquet'}'}}"
    whole = pretrained(beir, tmp_path / "whole", loss)
    assert whole.returncode == 0, whole.stderr
    assert pretrained(beir, tmp_path / "cut", loss, kill_after=6)["code"] == 9
    done = pretrained(beir, tmp_path / "cut", loss)
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stdout + done.stderr
    for name in ("model.safetensors", "loss-encoder_distil.safetensors"):
        ours, theirs = (load_file(tmp_path / folder / "pretrained" / name) for folder in ("whole", "cut"))
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_the_encoder_of_another_run_is_the_teacher(beir, tmp_path):
    teacher(beir, tmp_path)
    loss = f"{{use='text-vector-mse', path='{tmp_path / 'teacher.parquet'}'}}"
    assert pretrained(beir, tmp_path / "teacher", loss).returncode == 0
    loss = f"{{use='text-vector-cosine', encoder='{tmp_path / 'teacher'}'}}"
    done = pretrained(beir, tmp_path / "run", loss, "encoder.hidden=16")
    assert done.returncode == 0, done.stderr
    signal = SignalValues.open(tmp_path / "run/signal-text-vectors/values")
    assert signal.values.shape == (60, 32)


def test_texts_without_a_vector_and_a_loss_without_a_source_are_refused(beir, tmp_path):
    teacher(beir, tmp_path, without=("d7",))
    loss = f"{{use='text-vector-cosine', path='{tmp_path / 'teacher.parquet'}'}}"
    done = pretrained(beir, tmp_path / "run", loss)
    assert done.returncode
    assert says(done.stderr, "no vector for 1 of the 60 texts", "'d7'")

    def planned(loss):
        settings = ("pretrain.decoders={}", f"pretrain.encoder.losses={{distil={loss}}}", "encoder.layers=1")
        request = ComposeRequest(collection=f"beir:{beir}", settings=("finetune=none", *settings))
        recipe = compose(request, installed())
        check(recipe, installed().registry)
        return plan(recipe, installed().registry)

    for given in ("", ", path='a.npy', encoder='b'"):
        with pytest.raises(DrkitError, match=r"either `path`.* or `encoder`"):
            planned(f"{{use='text-vector-cosine'{given}}}")
    with pytest.raises(DrkitError, match=r"no vectors at nowhere\.npy"):
        planned("{use='text-vector-cosine', path='nowhere.npy'}")
