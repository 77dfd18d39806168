"""Trainings with DeepSpeed (ZeRO 1 and 2) on two processes: the weights of one process with twice the batch."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.runs.test_processes import SETTINGS, judged, launched, texts  # noqa: F401

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (pip install deepspeed)")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.fixture
def config(tmp_path):
    """Writes DeepSpeed's settings; returns the setting of a table that names them."""

    def of(table, stage):
        automatic = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
        settings = {**dict.fromkeys(automatic, "auto"), "zero_optimization": {"stage": stage}}
        settings |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
        path = tmp_path / f"zero-{stage}.json"
        path.write_text(json.dumps(settings))
        return f"--set={table}.arguments={{deepspeed='{path}'}}"

    return of


def close(one, two, **tolerance):
    for name, weight in load_file(one / "model.safetensors").items():
        found = load_file(two / "model.safetensors")[name]
        torch.testing.assert_close(found, weight, **tolerance, msg=lambda text, n=name: f"{n}: {text}")


def moved(start, end):
    before, after = (load_file(folder / "model.safetensors") for folder in (start, end))
    return max(float((after[name] - weight).abs().max()) for name, weight in before.items())


@pytest.mark.parametrize("stage", [1, 2])
def test_pre_training_has_the_weights_of_one_big_batch(texts, tmp_path, config, stage):  # noqa: F811
    given = [f"--collection=jsonl:{texts}", *SETTINGS, "--set=finetune=none", "--masker=pmi", "--decoder=enhanced"]
    size = "--set=pretrain.per_device_train_batch_size={}".format
    launched(tmp_path / "one", *given, size(8))
    launched(tmp_path / "two", *given, size(4), config("pretrain", stage), processes=2)
    close(tmp_path / "one/pretrained", tmp_path / "two/pretrained", atol=2e-4, rtol=1e-3)
    assert moved(tmp_path / "two/initial", tmp_path / "two/pretrained") > 1e-3


def test_accumulated_gradients_are_those_of_ddp(texts, tmp_path, config):  # noqa: F811
    given = [f"--collection=jsonl:{texts}", *SETTINGS, "--set=finetune=none", "--masker=pmi", "--decoder=enhanced"]
    given += ["--set=pretrain.per_device_train_batch_size=2", "--set=pretrain.gradient_accumulation_steps=2"]
    launched(tmp_path / "ddp", *given, processes=2)
    launched(tmp_path / "zero", *given, config("pretrain", 1), processes=2)
    close(tmp_path / "ddp/pretrained", tmp_path / "zero/pretrained", atol=2e-4, rtol=1e-3)


def test_in_batch_negatives_come_from_both_processes(judged, tmp_path, config):  # noqa: F811
    given = [one for one in SETTINGS if "pretrain" not in one]
    given += [f"--collection=beir:{judged}", "--pipeline=dpr", "--set=pretrain=none", "--set=finetune.max_steps=4"]
    size = "--set=finetune.per_device_train_batch_size={}".format
    launched(tmp_path / "one", *given, size(8))
    launched(tmp_path / "two", *given, size(4), config("finetune", 1), processes=2)
    close(tmp_path / "one/retriever-1", tmp_path / "two/retriever-1", atol=2e-4, rtol=1e-3)
    assert moved(tmp_path / "two/initial", tmp_path / "two/retriever-1") > 1e-3


@pytest.mark.parametrize(
    ("stage", "setting", "said"),
    [(3, "save_steps=2", "ZeRO stage 3"), (1, "gradient_cache_chunk=2", "gradient_cache_chunk does not work")],
)
def test_what_runs_cannot_do_is_refused_in_the_plan(run_drkit, config, stage, setting, said):
    given = config("pretrain", stage), f"--set=pretrain.{setting}", "--dry-run"
    code, _, err = run_drkit("compose", "--masker", "pmi", "--decoder", "enhanced", *given)
    assert (code, err.count("\n")) == (2, 2)
    assert said in err
