"""The notebooks run from their first cell to their last, and show what they found."""

from __future__ import annotations

import json

import pytest

from tests.python.notebooks import NAMES, execute, read

# What the cells of a notebook must print, in any order.
SHOWN = {
    "compare-methods": ("pmi instead of uniform", "enhanced instead of mlm", "runs     8"),
    "beat-your-checkpoint": ("labelled queries", "cross-validation", "recommended:"),
    "your-own-masker": ("2 passed", "retriever-1", "decoder: masker rare"),
}
# What a notebook trains, and what a test trains.
FEW = "--set pretrain.max_steps=8 --set finetune.max_steps=4"
FEWER = {
    "compare-methods": [("--scale quick --seeds 1,2", f"--scale quick --seeds 1,2 {FEW}")],
    "beat-your-checkpoint": [("--quick", f"--quick {FEW}")],
    "your-own-masker": [("--quick", f"--quick {FEW}")],
}


def printed(notebook):
    """What all cells of a notebook printed."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    return "".join("".join(output.get("text", ())) for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert all(old in json.dumps(read(name)) for old, _ in FEWER[name])
    shown = printed(execute(name, tmp_path, FEWER[name]))
    assert [words for words in SHOWN[name] if words not in shown] == []


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_notebook_with_outputs(name):
    notebook = read(name)
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert notebook["cells"][0]["cell_type"] == "markdown"
    names = [cell["id"] for cell in notebook["cells"]]
    assert len({*names}) == len(names)
    assert [words for words in SHOWN[name] if words not in printed(notebook)] == []
    assert "/tmp/" not in json.dumps(notebook), "a path of the machine that ran it"


def test_every_notebook_is_tested():
    assert {*NAMES} == {*SHOWN}
