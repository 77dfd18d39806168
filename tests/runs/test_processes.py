"""A whole run on two processes: every stage made once, trainings shared, and the same encoder as of one big batch."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from drkit.runs.manifest import read_manifest

SETTINGS = [
    "--set=encoder.vocab_size=110",
    "--set=encoder.hidden=16",
    "--set=encoder.heads=2",
    "--set=encoder.intermediate=32",
    "--set=encoder.passage_length=24",
    "--set=encoder.init_embeddings=random",
    "--set=pretrain.max_steps=4",
    "--set=pretrain.save_steps=2",
    "--set=pretrain.logging_steps=1",
    "--set=pretrain.probe.every=2",
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    names, deeds = (
        ["ada", "grace", "alan", "edsger", "frances"],
        ["wrote a compiler", "proved a theorem", "broke a cipher"],
    )
    lines = [
        json.dumps({"text": f"{n} {d} and {m} for {o}"}) for n in names for d in deeds for m in deeds for o in names
    ]
    path.write_text("\n".join(lines))
    return path


def compose(texts, run, batch, *settings, processes=1):
    start = ["-m", "torch.distributed.run", f"--nproc_per_node={processes}", "--rdzv-backend=c10d"]
    start += ["--rdzv-endpoint=localhost:0"]
    arguments = ["-m", "drkit_cli.main", "compose", f"--collection=jsonl:{texts}", f"--run-dir={run}", *SETTINGS]
    arguments += [f"--set=pretrain.per_device_train_batch_size={batch}", *settings]
    done = subprocess.run(
        [sys.executable, *(start if processes > 1 else []), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.parametrize(
    "settings",
    [
        ["--masker=pmi", "--decoder=enhanced"],
        # (A share of the targets is evenly spread over a forward's own, so it would be another one in other chunks.)
        ["--paper=cpdae", "--set=pretrain.gradient_cache_chunk=3", "--set=pretrain.losses.encoder.targets=1.0"],
    ],
    ids=["local losses", "contrast in chunks"],
)
def test_two_processes_make_the_encoder_that_one_makes_with_twice_the_batch(texts, tmp_path, settings):
    compose(texts, tmp_path / "one", 8, *settings)
    done = compose(texts, tmp_path / "two", 4, *settings, processes=2)
    assert done.stdout.count("report:") <= 1, "one process speaks for all"
    one, two = (load_file(tmp_path / run / "pretrained/model.safetensors") for run in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=2e-4, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}")
    start = load_file(tmp_path / "one/initial/model.safetensors")
    assert any((one[name] - weight).abs().max() > 1e-3 for name, weight in start.items()), "it has learnt something"
    assert read_manifest(tmp_path / "two/pretrained").metrics["steps"] == 4
    logs = [(tmp_path / run / "pretrained/log.jsonl").read_text().splitlines() for run in ("one", "two")]
    for line, other in zip(*logs, strict=True):
        assert json.loads(line)["loss"] == pytest.approx(json.loads(other)["loss"], rel=2e-3)
