"""A fault in one of two processes ends the run, without hanging, and the resumed run ends as an uninterrupted one."""

import errno
import random

import pytest

from tests.faults.conftest import ROOT
from tests.faults.test_faults import KILL, SEED, compose, contents

pytestmark = pytest.mark.slow


def two_processes(server, *arguments, root, **faults):
    """The end of drkit in two processes; faults: the operation `at` below `root` of the process `rank` fails."""
    return server.process.drkit(*arguments, folder=ROOT, processes=2, root=str(root), **faults)


@pytest.fixture(scope="module")
def whole(server, beir, tmp_path_factory):
    """The contents of an uninterrupted run, and the number of file operations of each process."""
    run = tmp_path_factory.mktemp("whole") / "ance"
    done = two_processes(server, *compose("ance", beir, run), root=run)
    assert done["code"] == 0, done["err"][-3000:]
    return contents(run), done["operations"]


def faulty(server, beir, folder, rank, error, last):
    """A run that a fault ended: its folder, end, and the operation that failed, drawn from 1 to `last`.

    The processes share out shards of vectors as they come, so the number of operations of one differs from run to run.
    A run in which the process did not get as far as its fault ends well, and an earlier fault is drawn.
    """
    draw = random.Random(f"{rank} {error} {SEED}")
    while True:
        at = draw.randint(1, last)
        run = folder / str(at) / "ance"
        run.parent.mkdir()
        done = two_processes(server, *compose("ance", beir, run), root=run, rank=rank, at=at, error=error)
        if done["code"] != 0:
            return run, done, at
        last = done["operations"][rank]
        assert last < at


@pytest.mark.parametrize("error", [KILL, errno.ENOSPC], ids=["kill", "ENOSPC"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_fault_in_one_process_ends_both_and_the_run_goes_on_later(server, beir, whole, tmp_path, rank, error):
    expected, counted = whole
    run, done, at = faulty(server, beir, tmp_path, rank, error, counted[rank])
    if error != KILL:
        lines = [line for line in done["err"].splitlines() if line.startswith("error")]
        assert len(lines) == 1, (at, done["err"][-3000:])
        assert lines[0].startswith("error: the disk is full"), (at, lines)
    done = two_processes(server, *compose("ance", beir, run), root=run)
    assert done["code"] == 0, (at, done["err"][-3000:])
    found = contents(run)
    assert {*found} ^ {*expected} == set(), at
    assert [path for path in found if found[path] != expected[path]] == [], at
