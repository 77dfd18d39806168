"""A fault in one of two processes ends the run, without hanging, and the resumed run ends as an uninterrupted one."""

import errno
import os
import random
import subprocess
import sys

import pytest

from tests.faults.conftest import ROOT
from tests.faults.test_faults import KILL, SEED, compose, contents

pytestmark = pytest.mark.slow
LONGEST = 300


def two_processes(library, *arguments, root, rank=0, at=0, error=KILL):
    """The end of drkit under torchrun; operation `at` below `root` of the process with this rank fails."""
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
    start += ["--rdzv-endpoint=localhost:0", "-m", "tests.faults.process", root, rank, at, error]
    return subprocess.run(
        list(map(str, [*start, *arguments])),
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LD_PRELOAD": str(library)},
    )


@pytest.fixture(scope="module")
def whole(library, beir, tmp_path_factory):
    """The contents of an uninterrupted run, and the number of file operations of each process."""
    run = tmp_path_factory.mktemp("whole") / "ance"
    done = two_processes(library, *compose("ance", beir, run), root=run)
    assert done.returncode == 0, done.stderr[-3000:]
    return contents(run), [operations(run, rank) for rank in (0, 1)]


def operations(run, rank):
    return int(run.with_name(f"{run.name}.{rank}").read_text())


def faulty(library, beir, folder, rank, error, last):
    """A run that a fault ended: its folder, end, and the operation that failed, drawn from 1 to `last`.

    The processes share out shards of vectors as they come, so the number of operations of one differs from run to run.
    A run in which the process did not get as far as its fault ends well, and an earlier fault is drawn.
    """
    draw = random.Random(f"{rank} {error} {SEED}")
    while True:
        at = draw.randint(1, last)
        run = folder / str(at) / "ance"
        run.parent.mkdir()
        done = two_processes(library, *compose("ance", beir, run), root=run, rank=rank, at=at, error=error)
        if done.returncode != 0:
            return run, done, at
        last = operations(run, rank)
        assert last < at


@pytest.mark.parametrize("error", [KILL, errno.ENOSPC], ids=["kill", "ENOSPC"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_fault_in_one_process_ends_both_and_the_run_goes_on_later(library, beir, whole, tmp_path, rank, error):
    expected, counted = whole
    run, done, at = faulty(library, beir, tmp_path, rank, error, counted[rank])
    if error != KILL:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error")]
        assert len(lines) == 1, (at, done.stderr[-3000:])
        assert lines[0].startswith("error: the disk is full"), (at, lines)
    done = two_processes(library, *compose("ance", beir, run), root=run)
    assert done.returncode == 0, (at, done.stderr[-3000:])
    found = contents(run)
    assert {*found} ^ {*expected} == set(), at
    assert [path for path in found if found[path] != expected[path]] == [], at
