"""Tasks in all processes of torchrun: each does its share, in the order of the tasks; failures are named."""

import json

import pytest

from drkit.core.engine import GroupEngine, ProcessEngine, Task, open_engine
from tests.refusals import refused
from tests.torchrun import run_processes


@pytest.mark.parametrize("processes", [2, 3])
def test_every_process_does_its_share_and_failures_are_named(tmp_path, processes):
    run_processes("tests.engine.group", tmp_path, processes=processes)
    done = json.loads((tmp_path / "found.json").read_text())
    assert [number for number, _ in done["found"]] == [0, 1, 2, 3, 5]
    assert all(rank == number % processes for number, rank in done["found"])
    assert "task 4: ValueError: four" in done["failed"]
    assert "keeps what is finished" in done["failed"]
    assert (tmp_path / "group.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    assert len([*(tmp_path / "mined").iterdir()]) == 7


def test_one_process_is_a_group_too():
    engine = GroupEngine()
    assert [*engine.run(Task("half", divmod, (number, 2)) for number in range(3))] == [(0, 0), (0, 1), (1, 0)]
    assert engine.slots == 1


def test_processes_of_this_machine_are_an_engine(monkeypatch):
    with open_engine("processes:2") as engine:
        assert engine == ProcessEngine(2)
    for wrong in ("processes", "processes:", "processes:0", "processes:x", "process:2"):
        with refused("engine"):
            open_engine(wrong)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("torchrun"):
        open_engine("processes:2")
