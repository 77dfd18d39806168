"""The guide to plugins, followed to the letter: its files written, its commands run, in a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.cli.test_light_commands import drkit
from tests.cli.test_strangers_data import beside

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "plugins.md"
# A step of the guide: a file by its path, or commands.
STEP = re.compile(r"(?:`(?P<path>[\w/.]+)`:\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A new virtual environment that has drkit and what it needs, but no plugin of ours; its scripts come first.

    The packages are those of the tests' own environment, so that nothing is downloaded.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    paths = [sysconfig.get_path("purelib"), *map(str, (ROOT, ROOT / "cli", ROOT / "plugins"))]
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "tests-own.pth").write_text("\n".join(paths))
    scripts = folder / "bin"
    for name, module in (("drkit", "drkit_cli.main"), ("pytest", "pytest")):
        (scripts / name).write_text(f'#!/bin/sh\nexec "{scripts}/python" -m {module} "$@"\n')
        (scripts / name).chmod(0o755)
    # Nothing is downloaded: what builds the package comes from the tests' own environment.
    pip = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **pip, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guide_works_to_the_letter(environment, tmp_path):
    steps = list(STEP.finditer(GUIDE.read_text(encoding="utf-8")))
    written = [step["path"] for step in steps if step["path"]]
    assert len(written) == 8
    outputs = {}
    for step in steps:
        if step["path"]:
            target = tmp_path / step["path"]
            assert target.exists() or target.name == "notes.py", f"{step['path']} is not a file of the new package"
            target.write_text(step["text"])
        elif step["language"] == "shell":
            for command in step["text"].splitlines():
                outputs[command] = _run(command, tmp_path, environment)
    assert "6 passed" in outputs["pytest -q entities/tests"]
    assert "entities-signal" in outputs["drkit list signal"]
    assert "by how much names come before other tokens" in outputs["drkit show masker entities-masker"]
    (trained,) = (output for command, output in outputs.items() if command.endswith("--quick"))
    assert "retriever-1" in trained
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "pretrained" / "decoder.safetensors").is_file()
    assert (run / "signal-entities-signal").is_dir()
    _check_types(tmp_path / "entities")


def _run(command, folder, environment):
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _check_types(folder):
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "entities"]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, (ROOT, ROOT / "cli", ROOT / "plugins")))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_broken_plugin_takes_nobody_down(tmp_path):
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[drkit]\nbroken = broken\n")
    code, out, _ = drkit("plugins", PYTHONPATH=beside(tmp_path))
    assert code == 0
    assert "no_such_module" in out
    code, out, _ = drkit("list", "masker", PYTHONPATH=beside(tmp_path))
    assert code == 0
    assert "pmi" in out
