"""A run that may only be read: every command that only reads works, and one that writes says so in one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READING = {
    "status": ["status", "RUN"],
    "status --verify": ["status", "RUN", "--verify"],
    "search": ["search", "RUN", "Initialize a filter."],
    "hybrid search": ["search", "RUN", "Initialize a filter.", "--system", "hybrid"],
    "evaluate": ["evaluate", "RUN"],
    "compare": ["compare", "RUN:bm25", "RUN:retriever-1"],
    "export": ["export", "RUN", "-o", "exported"],
    "export --trec": ["export", "RUN", "--trec", "rankings"],
    "export --vectors": ["export", "RUN", "--vectors", "passages.parquet"],
    "fuse": ["fuse", "RUN/runs/bm25.arrow", "RUN/runs/retriever-1.arrow", "-o", "fused.trec"],
    "report": ["report", "RUN", "-o", "page.html"],
    "inspect mask": ["inspect", "mask", "--run", "RUN", "Initialize a filter."],
    "prune --dry-run": ["prune", "RUN", "--dry-run"],
    "run --dry-run": ["run", "RUN", "--dry-run"],
    "mine": ["mine", "--collection", "RUN", "--miner", "bm25", "-o", "mined.jsonl"],
    "evaluate --encoder": ["evaluate", "--encoder", "RUN", "--collection", "RUN", "-o", "evaluated"],
    "encode": ["encode", "--encoder", "RUN", "--collection", "RUN", "-o", "vectors"],
    "compose --reuse": ["run", "RUN", "--run-dir", "again", "--reuse", "RUN", "--no-trial"],
}
WRITING = {"prune": ["prune", "RUN"], "run": ["run", "RUN", "--no-trial"]}


# Root may write into any folder, unless it gives up this capability.
WITHOUT_ROOT = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]


@pytest.fixture(scope="module")
def read_only(tiny_run, tmp_path_factory):
    """The outcome of every command on a run that nobody may write into: (exit code, what it printed)."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may write into any folder: run the tests as another user, or install setpriv")
    scratch = tmp_path_factory.mktemp("read-only")
    run = scratch / "run"
    shutil.copytree(tiny_run[0], run)
    for path in (run, *run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = state(run)
    commands = [[part.replace("RUN", str(run)) for part in one] for one in (READING | WRITING).values()]
    python = [sys.executable, "-m", "tests.runs.read_only", str(scratch)]
    done = subprocess.run(
        [*WITHOUT_ROOT, *python] if os.geteuid() == 0 else python,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert state(run) == before
    yield dict(zip(READING | WRITING, json.loads(done.stdout), strict=True))
    for path in (run, *run.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


def state(run):
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(run.rglob("*"))}


@pytest.mark.parametrize("command", READING)
def test_a_command_that_reads_works(read_only, command):
    code, printed = read_only[command]
    assert code == 0, printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("command", WRITING)
def test_a_command_that_writes_says_that_it_cannot(read_only, command):
    code, printed = read_only[command]
    assert code == 2, printed
    assert printed.strip().splitlines()[-1].startswith("error: cannot write to ")
    assert ("--run-dir" in printed) is (command == "run")
    assert "Traceback" not in printed
