"""The benchmarks of the parts run for everything that is installed, here at toy sizes."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def loaded(name, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    found = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, name, module)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def small(monkeypatch):
    step = loaded("pretrain_step", monkeypatch)
    sizes = {"hidden": 16, "layers": 2, "heads": 2, "intermediate": 16, "dropout": 0.0}
    for name, value in (("TEXTS", 3), ("LENGTH", 24), ("VOCAB", 1100), ("SIZES", sizes), ("GENERATOR", sizes)):
        monkeypatch.setattr(step, name, value)
    return step


def test_a_step_of_every_pair_has_a_loss(small):
    from drkit.core.registry import installed

    pairs = small.names(every_masker=True)
    decoders = {pair.rpartition(" + ")[2] for pair in pairs[1:]}
    assert decoders == {*installed().registry.names("decoder")}, "a decoder that goes with no masker"
    small.step_of(small.PLAIN)()
    for pair in pairs[1:]:
        loss, _ = small.step_of(pair)()
        assert torch.isfinite(loss), pair
        assert loss > 0, pair


def test_one_pair_a_decoder_uniform_where_it_fits(small):
    found = small.names()
    decoders = [name.rpartition(" + ")[2] for name in found[1:]]
    assert len(decoders) == len({*decoders})
    assert "uniform + mlm" in found
    assert "uniform + enhanced" in found


def test_every_masker_is_timed(monkeypatch):
    from drkit.core.registry import installed

    masking = loaded("masking", monkeypatch)
    monkeypatch.setattr(masking, "TEXTS", 4)
    monkeypatch.setattr(masking, "LENGTH", 20)
    threads = torch.get_num_threads()
    rows = masking.measure(repeats=1)
    assert {row["masker"] for row in rows} == {*installed().registry.names("masker")}
    assert all(row["ms"] > 0 for row in rows)
    assert torch.get_num_threads() == threads
