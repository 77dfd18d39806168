"""Run the fast tests with other versions of Python, torch and transformers, and print a table of the results.

python tests/versions.py --work FOLDER [--only 3.10 torch==2.11.0] [--tests core goldens]

Each combination gets a virtual environment, with constraints.txt for everything that the combination does not name, and
a log in FOLDER; the environment is removed afterwards (torch for CUDA takes about 5 GB). A Python that is not installed
is reported as such. Continuous integration runs one combination, `.ci/run`; this is for a release.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("core", "parts", "encoders", "goldens", "evaluate")
SHOWN = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy")


class Combination(NamedTuple):
    """A version of Python, and of packages; an empty version leaves the choice to pip."""

    python: str
    packages: Mapping[str, str]

    @property
    def name(self) -> str:
        """What is special about it: `3.10`, or `torch==2.11.0` or `newest` packages with the usual Python."""
        usual = "newest" if self.packages else self.python
        return next((f"{name}=={version}" for name, version in self.packages.items() if version), usual)


COMBINATIONS = (
    Combination("3.10", {}),
    Combination("3.12", {}),
    Combination("3.13", {}),
    Combination("3.11", {"torch": "2.11.0"}),
    Combination(
        "3.11", dict.fromkeys(("torch", "transformers", "tokenizers", "sentence-transformers", "accelerate"), "")
    ),
    # Other versions of these need other versions of transformers.
    Combination("3.11", {"transformers": "5.0.0", "tokenizers": "", "sentence-transformers": "", "accelerate": ""}),
)


def find_python(version: str) -> str | None:
    """Return an interpreter of a version such as 3.12, from the path or from pyenv, or None."""
    pyenv = Path.home() / ".pyenv" / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for candidate in map(str, filter(None, candidates)):
        said = subprocess.run([candidate, "-V"], capture_output=True, text=True, check=False).stdout
        if said.startswith(f"Python {version}."):  # a shim of pyenv exists for Pythons that it does not run
            return candidate
    return None


def constraints(combination: Combination) -> str:
    """Return the lines of constraints.txt, with the packages of the combination replaced."""
    usual = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in usual if re.split(r"[=<>;]", line)[0].replace("_", "-") not in combination.packages]
    return "\n".join([*kept, *(f"{name}=={version}" for name, version in combination.packages.items() if version)])


def run(combination: Combination, work: Path, tests: Sequence[str]) -> tuple[str, ...]:
    """Install and test one combination; returns a row of the table."""
    python = find_python(combination.python)
    if python is None:
        return (combination.python, *("" for _ in SHOWN), "not run: no such Python here")
    folder, log = work / combination.name, work / f"{combination.name}.log"
    inside, limits = str(folder / "bin" / "python"), work / f"{combination.name}.txt"
    limits.write_text(constraints(combination), encoding="utf-8")
    install = [inside, "-m", "pip", "install", "--quiet", "-c", str(limits), "-e", f"{ROOT}[all,test]"]
    test = [inside, "-m", "pytest", "-p", "no:cacheprovider", "--durations=10", *(f"tests/{name}" for name in tests)]
    try:
        for step, command in (("venv", [python, "-m", "venv", "--clear", str(folder)]), ("install", install)):
            if logged(command, log):
                return (combination.python, *("" for _ in SHOWN), f"{step} failed; see {log.name}")
        status = logged(test, log)
        counts = last_line(log) if status in (0, 1) else f"ended with status {status}; see {log.name}"
        return (*versions(inside), counts)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def logged(command: Sequence[str], log: Path) -> int:
    """Run a command in the repository, with its output appended to a log; returns the exit code."""
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=file, cwd=ROOT, env=dict(environment()), check=False)
    return done.returncode


def environment() -> Iterator[tuple[str, str]]:
    """Yield the environment variables of a run: one thread, and no Python path of the caller's."""
    yield from ((name, value) for name, value in os.environ.items() if name != "PYTHONPATH")
    yield "OMP_NUM_THREADS", "1"


def versions(python: str) -> tuple[str, ...]:
    """Return the versions of Python and of the packages of the table."""
    code = "import sys, json; from importlib.metadata import version; print(json.dumps(["
    code += f"sys.version.split()[0], *map(version, {SHOWN!r})]))"
    return tuple(json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout))


def last_line(log: Path) -> str:
    """Return the counts of pytest, such as `700 passed, 3 skipped`."""
    line = log.read_text(encoding="utf-8", errors="replace").rstrip().rpartition("\n")[2]
    return re.sub(r" in [\d.:()s ]+", "", line).strip("= ")


def main() -> None:
    """Print a Markdown table with a row per combination."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for environments and logs")
    parser.add_argument("--only", nargs="+", default=[each.name for each in COMBINATIONS], help="names of combinations")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders of tests to run")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    print(f"| Python | {' | '.join(SHOWN)} | tests |", "|---" * (len(SHOWN) + 2) + "|", sep="\n", flush=True)
    for combination in COMBINATIONS:
        if combination.name in given.only:
            print(f"| {' | '.join(run(combination, given.work.resolve(), given.tests))} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
