"""Commands of a page, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from tests.warm import warm_process

_ROOT = Path(__file__).parents[2]
# mypy finds drkit; what it has read of torch when it checked drkit is read from its cache.
MYPY = {
    "MYPYPATH": os.pathsep.join(map(str, (_ROOT, _ROOT / "cli", _ROOT / "plugins"))),
    "MYPY_CACHE_DIR": str(_ROOT / ".mypy_cache"),
}


def run(command, folder, environment):
    """Run a command line; return what it prints."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(folder, site):
    """Make the plugin in `folder` found, as an editable installation does."""
    text = (folder / "pyproject.toml").read_text()
    name, module = re.search(r'\[project\.entry-points\.drkit\]\n(\S+) = "(\S+)"', text).groups()
    metadata = site / f"{module}-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(f"[drkit]\n{name} = {module}\n")
    return os.pathsep.join((str(folder), str(site)))


def run_warm(command, folder, **environment):
    """Run drkit, pytest or a script of Python in a child of the warm process; return what it prints."""
    program, *arguments = shlex.split(command)
    job = {"python": lambda: {"script": arguments.pop(0)}, "pytest": lambda: {"module": "pytest"}}.get(program, dict)()
    done = warm_process().drkit(*arguments, folder=folder, environment=environment, **job)
    assert done["code"] == 0, f"{command}\n{done['out']}\n{done['err']}"
    return done["out"]
