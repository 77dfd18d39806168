"""Tokens a second in the log: what is counted, by which clock, and that training is the same without them."""

import json

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from drkit.core.progress import Silent
from drkit.recipe.training import Training
from drkit.train import logs
from drkit.train.batches import Schedule
from drkit.train.logs import Meter
from drkit.train.trainer import train
from tests.runs.test_training import Collate, Toy, same
from tests.torchrun import run_processes

SECONDS = {"fetched": 1.0, "trained": 3.0, "probed": 100.0}


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(logs, "time", made)
    return made


def test_padding_is_not_counted_and_reading_begins_again(clock):
    meter = Meter(("query.attention", "passage.attention"))
    queries, passages = torch.tensor([[True, True], [True, False]]), torch.ones(2, 3, dtype=torch.bool)
    for _ in range(2):
        meter.start()
        meter.count({"query.attention": queries, "passage.attention": passages, "passage.ids": passages.long()})
        clock.now += 0.5
        meter.stop(wait=True)
        clock.now += 60
    assert meter.read() == {"tokens_per_second": 18.0}
    assert meter.read() == {}


def test_nothing_is_counted_without_marks(clock):
    for marks, expected in ((("x",), {"tokens_per_second": 3.0}), ((), {})):
        meter = Meter(marks)
        meter.start()
        meter.count({"x": torch.ones(3, dtype=torch.bool)})
        clock.now += 1
        meter.stop(wait=False)
        assert meter.read() == expected


class Marked(Toy):
    """The toy, which reads tokens; a step takes three seconds."""

    marks = ("real",)

    def __init__(self, clock):
        torch.manual_seed(0)
        super().__init__()
        self.clock = clock

    def count(self, _tensors):
        return {"items.copy": torch.tensor(4)}

    def forward(self, x, real=None, local=True):
        self.clock.now += SECONDS["trained"]
        return super().forward(x, local)


class Fetched(Collate):
    """Ten tokens a batch; fetching one takes a second."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def __call__(self, examples):
        self.clock.now += SECONDS["fetched"]
        return {**super().__call__(examples), "real": torch.arange(4 * 5).view(4, 5) < 10}


class Probe(TrainerCallback):
    """Takes long after each step."""

    def __init__(self, clock):
        self.clock = clock

    def on_step_end(self, *_, **__):
        self.clock.now += SECONDS["probed"]


class Shown(Silent):
    """Keeps what a progress bar would show."""

    def __init__(self):
        self.shown = []

    def advance(self, _done, _total, _unit, **metrics):
        self.shown.append(metrics)


def go(module, collate, folder, progress=None, callbacks=(), **settings):
    accumulated = settings.get("gradient_accumulation_steps", 1)
    schedule = Schedule(lengths=np.full(40, 5, np.int32), batch_size=4, batches=12, seed=3, per_step=accumulated)
    steps = 12 // accumulated
    chosen = {"max_steps": steps, "save_steps": 5, "logging_steps": 4, "per_device_train_batch_size": 4, **settings}
    training, progress = Training(**chosen), progress or Silent()
    how = {"training": training, "folder": folder, "progress": progress, "seed": 7}
    return train(module, schedule, collate, **how, callbacks=callbacks)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_log_has_the_rate_of_fetching_and_training_alone(clock, tmp_path, accumulation):
    progress = Shown()
    result = go(
        Marked(clock),
        Fetched(clock),
        tmp_path,
        progress,
        [Probe(clock)],
        gradient_accumulation_steps=accumulation,
    )
    assert [line["tokens_per_second"] for line in result.log] == [2.5] * len(result.log)
    assert progress.shown[-1]["tokens/s"] == 2.5


def test_counting_changes_no_weights(clock, tmp_path):
    counted, plain = Marked(clock), Marked(clock)
    plain.marks = ()
    logs = [go(one, Fetched(clock), tmp_path / str(i)).log for i, one in enumerate((counted, plain))]
    assert same(counted, plain)
    assert [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]
    assert "tokens_per_second" in logs[0][0]
    assert "tokens_per_second" not in logs[1][0]


def test_the_tokens_of_all_processes_count(tmp_path):
    run_processes("tests.runs.two_meters", tmp_path)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert found == [{"tokens_per_second": 3.5}] * 2
