"""A command builds the collection once before its stage: that of large files is read for seconds each time."""

import json

import pytest

from drkit.core.spec import ComponentSpec, Kind
from drkit.runs import costs
from drkit.runs.making import texts as steps
from drkit_cli.main import cli


@pytest.fixture
def built(monkeypatch):
    """The names of the collections that were built, in order."""
    found, load = [], ComponentSpec.load

    def counting(spec):
        factory = load(spec)
        if spec.kind is not Kind.COLLECTION:
            return factory
        return lambda *given: found.append(spec.name) or factory(*given)

    monkeypatch.setattr(ComponentSpec, "load", counting)
    monkeypatch.setattr(costs, "has_gpu", lambda: False)  # memory is fitted, and time estimated
    return found


@pytest.fixture
def composed(tmp_path, capsys):
    """Run `drkit compose` on a file of texts."""
    rows = (json.dumps({"id": str(number), "text": f"the text {number} of a file"}) for number in range(20))
    (tmp_path / "texts.jsonl").write_text("\n".join(rows), encoding="utf-8")

    def compose(*words):
        given = ("--collection", f"jsonl:{tmp_path / 'texts.jsonl'}", "--run-dir", str(tmp_path / "run"))
        cli.main(["compose", *given, *words], standalone_mode=False)
        return capsys.readouterr().out

    return compose


def test_a_dry_run_with_lengths_and_costs_builds_it_once(built, composed):
    assert "memory" in composed("--dry-run")
    assert built == ["jsonl"]


def test_a_dry_run_that_fits_the_memory_builds_it_once(built, composed, tmp_path):
    config = {"model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 30522}
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder/config.json").write_text(json.dumps(config), encoding="utf-8")
    composed("--dry-run", "--encoder", str(tmp_path / "encoder"), "--pipeline", "texts")
    assert built == ["jsonl"]


def test_a_run_builds_it_once_before_its_stage(built, composed, monkeypatch):
    before = []

    def store(*_):
        before.extend(built)
        raise InterruptedError

    monkeypatch.setattr(steps, "write_collection", store)
    with pytest.raises(InterruptedError):
        composed("--quick")
    assert before == ["jsonl"] * 2  # the second is that of the stage
