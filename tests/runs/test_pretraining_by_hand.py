"""The page on pre-training by hand: its script runs as it stands, and takes the steps of a run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from drkit.train import gradients

PAGE = Path(__file__).parents[2] / "docs" / "examples" / "pretraining-by-hand.md"
BLOCK = re.compile(r"```(python|shell)\n(.*?)```", re.DOTALL)


@pytest.fixture
def steps(monkeypatch):
    """The loss and the gradients of every step that is taken, by the names of weights."""
    taken, backward = [], gradients.backward

    def recorded(module, tensors, strategy):
        loss, metrics = backward(module, tensors, strategy)
        found = {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}
        taken.append((loss.clone(), found))
        return loss, metrics

    monkeypatch.setattr(gradients, "backward", recorded)
    return taken


def test_the_page_takes_the_steps_of_a_run(steps, tmp_path, monkeypatch, capsys, run_drkit):
    (_, script), (_, by_hand), (_, command) = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert by_hand == "python by_hand.py\n"
    assert f"`by_hand.py`:\n```python\n{script}" in PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "by_hand.py", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    mine, steps[:] = [*steps], []
    code, _, said = run_drkit(*shlex.split(command)[1:])
    assert code == 0, said

    assert len(mine) == len(steps) == 20
    (loss, by_name), (loss_of_run, of_run) = mine[0], steps[0]
    assert torch.equal(loss, loss_of_run)
    assert {*by_name} == {*of_run}
    assert any("decoder" in name for name in by_name)
    for name, gradient in by_name.items():
        assert torch.equal(gradient, of_run[name]), name
    losses = [found.item() for found, _ in mine]
    logged = [json.loads(line)["loss"] for line in Path("runs/same/pretrained/log.jsonl").read_text().splitlines()]
    assert logged == pytest.approx(losses, abs=2e-4)
    assert losses[-1] < 0.8 * losses[0]
    assert [line.partition(" {")[0] for line in shown] == [f"step {n}: loss {losses[n - 1]:.3f}" for n in (1, 20)]
