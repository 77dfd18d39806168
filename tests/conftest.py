"""Settings of all tests: no times of hypothesis, equal sums, a thread each for processes side by side (`-n auto`)."""

import gc
import os
import sys

import hypothesis
import pytest

from tests.warm import measure_nothing

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is there; processes that a test starts take it over
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Every process that a test starts would compile drkit anew, which takes a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# pytest-xdist sets it, and what tests start is to print as into a pipe.
os.environ.pop("COLUMNS", None)
# Kernels are compiled here: workers that compile would import torch first.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# On AMD's processors, MKL's sums depend on where a matrix lies in memory; tests of equal runs need equal sums.
os.environ.setdefault("MKL_CBWR", "AUTO")

hypothesis.settings.register_profile("drkit", deadline=None, max_examples=80)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=10_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "drkit"))

# Nobody cuts the power: a tiny run would wait seconds for a busy disk. Processes that tests start do wait.
os.fsync = int
_seen = {"modules": 0}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """Keep the garbage collector from the modules that were imported: accelerate calls it after every training."""
    if len(sys.modules) > _seen["modules"] + 200:
        gc.collect()
        gc.freeze()
        _seen["modules"] = len(sys.modules)


@pytest.fixture
def run_drkit(monkeypatch, capsys):
    """Run the command line in this process; return (exit code, standard output, standard error)."""

    def call(*arguments):
        from drkit_cli.main import _status

        measure_nothing(monkeypatch.setattr)
        monkeypatch.setattr(sys, "argv", ["drkit", *map(str, arguments)])
        code = _status()
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


# Files that take a minute or more: begun last, one of them would leave the other processes idle.
LONGEST = (
    *("tests/runs/test_acceleration.py", "tests/cli/test_new_plugin.py", "tests/cli/test_example_pages.py"),
    *("tests/runs/test_stale.py", "tests/faults/test_faults.py", "tests/runs/test_run.py"),
    *("tests/cli/test_examples.py", "tests/parts/test_benchmarks.py"),
)


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
