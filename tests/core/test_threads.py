"""Threads: the limits of a container, what a command sets for OpenMP, and what it says of busy neighbours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from drkit.core import processes
from drkit.core.processes import available_cores, configured_threads, use_available_cores


@pytest.fixture
def eight(monkeypatch):
    """A machine with eight cores."""
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 8)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "9900000 100000\n"}, 8),
        ({"cpu.max": "nonsense"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_the_limit_of_a_container_counts(eight, tmp_path, files, cores):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert available_cores(tmp_path) == cores


def test_the_affinity_counts(eight, monkeypatch, tmp_path):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: {1, 5}, raising=False)
    assert available_cores(tmp_path) == 2


def test_what_a_command_sets(eight, monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "_processor_limit", lambda _: 2.0)
    environment: dict[str, str] = {}
    use_available_cores(environment)
    assert environment == {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"}
    monkeypatch.setattr(processes, "_processor_limit", lambda _: None)
    environment = {}
    use_available_cores(environment)
    assert environment == {"GOMP_SPINCOUNT": "1000"}, "libraries know how many cores suit them"


@pytest.mark.parametrize("given", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_what_the_user_set_stays(eight, monkeypatch, given):
    monkeypatch.setattr(processes, "_processor_limit", lambda _: 2.0)
    environment = {given: "1000", "OMP_NUM_THREADS": "6"}
    use_available_cores(environment)
    assert environment == {given: "1000", "OMP_NUM_THREADS": "6"}


def test_threads_do_not_sleep_at_once_and_no_torch_is_imported():
    code = (
        "import sys, drkit_cli.main as m; sys.argv = ['drkit', '--version']\n"
        "try: m.main()\nexcept SystemExit: pass\n"
        "import os; print(os.environ.get('OMP_WAIT_POLICY'), 'torch' in sys.modules)"
    )
    clean = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "None False"


@pytest.mark.parametrize(("given", "count"), [("", 8), ("3", 3), ("2,4", 2), ("many", 8), ("0", 8)])
def test_configured_threads(eight, monkeypatch, given, count):
    monkeypatch.setattr(processes, "_processor_limit", lambda _: None)
    assert configured_threads({"OMP_NUM_THREADS": given} if given else {}) == count
