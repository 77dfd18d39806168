"""The engine `ray`: what it reserves, the tasks that fail, and what it refuses."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from drkit.core.engine import Task, open_engine
from drkit.errors import DrkitError, MissingExtraError
from drkit_ray.engine import RayEngine
from tests.refusals import says


@pytest.mark.parametrize("address", ["host", "http://host:1", "a b:1", "\x1b[2J:1"])
def test_another_address_is_refused(address):
    with pytest.raises(DrkitError, match=r"address .*; .*ray, ray:auto or ray:HOST:PORT") as raised:
        open_engine(f"ray:{address}").__enter__()
    assert "\x1b" not in str(raised.value)


def test_ray_takes_no_part_in_a_torchrun_and_chooses_gpus_itself(monkeypatch):
    with pytest.raises(DrkitError, match=r"device 'cuda:1' .*\bray\b.*auto or cpu"):
        open_engine("ray", "cuda:1").__enter__()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DrkitError, match=r"\bray\b.*single process.*torchrun"):
        open_engine("ray").__enter__()


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'drkit\[ray\]'"):
        open_engine("ray").__enter__()


def test_only_an_engine_that_is_asked_for_imports_ray():
    code = "import sys, drkit.core.engine, drkit_cli.main; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def fail(number):
    if number in (1, 4):
        raise ValueError(f"no {number} \x1b[2J")
    return number


@pytest.mark.slow
def test_all_results_come_in_order_before_the_failed_tasks_are_named(nodes):
    got = []
    with open_engine(nodes.engine) as opened, pytest.raises(DrkitError) as raised:
        got.extend(opened.run(Task(f"number {n}", fail, (n,)) for n in range(8)))
    assert got == [0, 2, 3, 5, 6, 7]
    first, *failed, _ = str(raised.value).splitlines()
    assert says(first, "2 of 8 tasks", "3 attempts")
    assert failed == [f"  - number {i}: ValueError: no {i} \\x1b[2J" for i in (1, 4)]


@pytest.mark.parametrize(
    ("uses", "gpus", "reserved", "at_once"),
    [
        ("core", 2, {"CPU": 1, "GPU": 0}, 20),
        ("threads", 2, {"CPU": 8, "GPU": 0}, 2),
        ("gpu", 2, {"CPU": 1, "GPU": 1}, 2),
        ("gpu", 0, {"CPU": 8, "GPU": 0}, 2),
    ],
)
def test_a_task_gets_what_it_uses(monkeypatch, uses, gpus, reserved, at_once):
    cluster = SimpleNamespace(cluster_resources=lambda: {"CPU": 20.0, **({"GPU": float(gpus)} if gpus else {})})
    monkeypatch.setattr("drkit_ray.engine._ray", lambda: cluster)
    engine = RayEngine(threads=8, uses_gpus=bool(gpus))
    assert (engine.resources(uses), engine.at_once(uses), engine.slots) == (reserved, at_once, 2)


@pytest.mark.slow
def test_a_task_that_fits_on_no_machine_is_refused_at_once(nodes):
    with open_engine(nodes.engine), pytest.raises(DrkitError, match=r"at most 1: .*OMP_NUM_THREADS .*at most 1"):
        next(RayEngine(threads=64).run([Task("big", fail, (0,))]))
