"""The pages in docs/examples, followed to the letter: their files written, their commands and snippets run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"```(?P<language>shell|python)\n(?P<text>.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A folder with a script `drkit`, as an installation has it."""
    folder = tmp_path_factory.mktemp("bin")
    for name, command in {"drkit": f"{sys.executable} -m drkit_cli.main", "python": sys.executable}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def run(command, folder, path):
    environment = {
        **os.environ,
        "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, shell=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "script", "results"),
    [
        ("no-labels", "documents.py", ("runs/documents/encoder/modules.json", "recipe.toml")),
        ("few-labels", "labels.py", ("runs/labels/report.html", "labels.toml")),
    ],
)
def test_a_page_works_to_the_letter(page, script, results, path, tmp_path):
    steps = list(STEP.finditer((ROOT / "docs" / "examples" / f"{page}.md").read_text(encoding="utf-8")))
    snippets = [step["text"] for step in steps if step["language"] == "python"]
    (tmp_path / script).write_text(snippets[0])
    outputs = {
        command: run(command, tmp_path, path)
        for step in steps
        if step["language"] == "shell"
        for command in step["text"].splitlines()
    }
    for result in results:
        assert (tmp_path / result).is_file()
    assert all(output.strip() for command, output in outputs.items() if "search" in command or "init" in command)
    for number, snippet in enumerate(snippets[1:]):
        (tmp_path / f"snippet_{number}.py").write_text(snippet)
        assert run(f"python snippet_{number}.py", tmp_path, path).strip()
