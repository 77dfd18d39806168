"""Commands of a page, run as they stand there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
