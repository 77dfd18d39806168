"""Every masker with every decoder, trained for a few steps on texts, exported, and read back."""

import json

import numpy as np
import pytest

from drkit.core.compose import check
from drkit.core.discovery import installed
from drkit.core.layers import Wanted, compose
from drkit.runs.execute import execute
from drkit.runs.plan import plan
from drkit.runs.progress import Silent
from drkit.search import TextEncoder

PARTS = installed()
NAMES = ["ada", "grace", "alan", "edsger", "barbara", "donald", "john", "frances", "ken", "dennis"]
DEEDS = ["wrote a compiler", "proved a theorem", "broke a cipher", "drew the first machine", "named the bug"]
SETTINGS = (
    "encoder.vocab_size=100",
    "encoder.layers=2",
    "encoder.hidden=16",
    "encoder.heads=2",
    "encoder.intermediate=32",
    "encoder.passage_length=32",
    "pretrain.max_steps=3",
    "pretrain.logging_steps=1",
    "pretrain.per_device_train_batch_size=4",
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text(
        "\n".join(
            json.dumps({"text": f"{name} {deed} and {more}"}) for name in NAMES for deed in DEEDS for more in DEEDS
        )
    )
    return path


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("decoder", PARTS.registry.names("decoder"))
@pytest.mark.parametrize("masker", PARTS.registry.names("masker"))
def test_every_combination_trains(masker, decoder, pooling, texts, tmp_path):
    wanted = Wanted(
        masker=masker, decoder=decoder, collection=f"jsonl:{texts}", settings=(*SETTINGS, f"encoder.pooling={pooling}")
    )
    recipe = compose(wanted, PARTS)
    check(recipe, PARTS.registry)
    stages = plan(recipe, PARTS.registry).stages
    done = execute(stages, tmp_path / "run", recipe, registry=PARTS.registry, progress=Silent())
    assert done["pretrained"].metrics["steps"] == 3
    log = [json.loads(line) for line in (tmp_path / "run/pretrained/log.jsonl").read_text().splitlines()]
    assert len(log) == 3
    for entry in log:
        total = 0.3 * entry["encoder_loss"] + entry["decoder_loss"]
        assert entry["loss"] == pytest.approx(total, rel=1e-3)
        assert np.isfinite(entry["grad_norm"])
    encoder = TextEncoder.load(tmp_path / "run/encoder")
    assert encoder.pooling == pooling
    assert np.isfinite(encoder.encode_passages(["ada proved a theorem"])).all()
