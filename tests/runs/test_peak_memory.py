"""The peak memory that manifests record is that of the stage, not of the process so far."""

from __future__ import annotations

import numpy as np
import pytest

from drkit.core import processes
from drkit.core.processes import watch_memory

MIB = 2**20


def held(mebibytes):
    """Return an array whose pages are in memory."""
    return np.ones(mebibytes * MIB, np.uint8)


def test_the_peak_is_that_since_the_watch_began():
    before = watch_memory()
    if "host" not in before():
        pytest.skip("this system cannot reset the counter of peak memory")
    array = held(200)
    first = before()["host"]
    del array
    after = watch_memory()
    second = after()["host"]
    assert first - second > 150 * MIB
    array = held(100)
    assert after()["host"] - second > 80 * MIB
    assert array.nbytes == 100 * MIB


def test_nothing_is_recorded_where_the_counter_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "_PROCESS", tmp_path / "none")
    assert "host" not in watch_memory()()
