"""An environment in which pages are followed to the letter."""

from __future__ import annotations

import os
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A new virtual environment that has drkit and what it needs, but no plugin of ours; its scripts come first.

    The packages are those of the tests' own environment, so that nothing is downloaded.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    packages = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"  # with what its .pth files add
    paths = [*map(str, (ROOT, ROOT / "cli", ROOT / "plugins")), packages]
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "tests-own.pth").write_text("\n".join(paths))
    scripts = folder / "bin"
    for name, module in (("drkit", "drkit_cli.main"), ("pip", "pip"), ("pytest", "pytest")):
        (scripts / name).write_text(f'#!/bin/sh\nexec "{scripts}/python" -m {module} "$@"\n')
        (scripts / name).chmod(0o755)
    # Nothing is downloaded: what builds the package comes from the tests' own environment.
    pip = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **pip, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
