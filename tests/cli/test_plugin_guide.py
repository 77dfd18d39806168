"""The guide to plugins, followed to the letter: its files written, its commands run, in a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.following import MYPY, run
from tests.cli.test_light_commands import drkit
from tests.cli.test_strangers_data import beside

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "plugins.md"
# A step of the guide: a file by its path, or commands.
STEP = re.compile(r"(?:`(?P<path>[\w/.-]+)`:\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_guide_works_to_the_letter(environment, tmp_path):
    steps = list(STEP.finditer(GUIDE.read_text(encoding="utf-8")))
    written = [step["path"] for step in steps if step["path"]]
    assert len(written) == 9
    outputs = {}
    for step in steps:
        if step["path"]:
            target = tmp_path / step["path"]
            assert target.exists() or target.name == "notes.py", f"{step['path']} is not a file of the new package"
            target.write_text(step["text"])
        elif step["language"] == "shell":
            for command in step["text"].splitlines():
                outputs[command] = run(command, tmp_path, environment)
    assert "6 passed" in outputs["pytest -q entities/tests"]
    assert "entities-signal" in outputs["drkit list signal"]
    assert "by how much names come before other tokens" in outputs["drkit show masker entities-masker"]
    (trained,) = (output for command, output in outputs.items() if command.endswith("--quick"))
    assert "retriever-1" in trained
    (made,) = (tmp_path / "runs").iterdir()
    assert (made / "pretrained" / "decoder-main.safetensors").is_file()
    assert (made / "signal-entities-signal").is_dir()
    _check_types(tmp_path / "entities")


def _check_types(folder):
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "entities"]
    environment = {**os.environ, **MYPY}
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
