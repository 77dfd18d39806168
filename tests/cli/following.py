"""Commands of a page, run as they stand there."""

from __future__ import annotations

import subprocess


def run(command, folder, environment):
    """Run a command line; return what it prints."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
