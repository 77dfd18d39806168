"""A clock that is set back between two starts of a run changes nothing."""

import os
import random

import pytest

from tests.faults.test_faults import KILL, SEED, assert_ends_well, compose, contents

DAYS = 2 * 24 * 3600


@pytest.mark.parametrize("part", [0.3, 0.6])
def test_a_run_resumed_two_days_earlier_ends_as_one_without(server, beir, finished, tmp_path, part):
    """What the killed run left is from the future: newer checkpoints are not deleted, nor older ones preferred."""
    (whole, operations), run = finished("ance"), tmp_path / "killed"
    at = int(part * operations) + random.Random(SEED).randint(0, 20)
    assert_ends_well(server.drkit(*compose("ance", beir, run), root=run, at=at, error=KILL), KILL, at)
    assert not (run / "evaluation").exists()
    for path in (run, *run.rglob("*")):
        times = path.stat()
        os.utime(path, (times.st_atime + DAYS, times.st_mtime + DAYS))
    result = server.drkit(*compose("ance", beir, run), root=run)
    assert result["code"] == 0, result["output"]
    expected, found = contents(whole), contents(run)
    assert sorted(found) == sorted(expected)
    assert [path for path in found if found[path] != expected[path]] == []
