"""Commands of a page, run as they stand there."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.warm import warm_process

_ROOT = Path(__file__).parents[2]
# mypy finds drkit, and has read torch only once for all tests.
MYPY = {
    "MYPYPATH": os.pathsep.join(map(str, (_ROOT, _ROOT / "cli", _ROOT / "plugins"))),
    "MYPY_CACHE_DIR": str(_ROOT / ".mypy_cache" / "plugins"),
}


def run(command, folder, environment):
    """Run a command line; return what it prints."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_warm(command, folder):
    """Run drkit or a script of Python in a child of the warm process; return what it prints."""
    program, *arguments = shlex.split(command)
    job = {"script": arguments.pop(0)} if program == "python" else {}
    done = warm_process().drkit(*arguments, folder=folder, **job)
    assert done["code"] == 0, f"{command}\n{done['out']}\n{done['err']}"
    return done["out"]
