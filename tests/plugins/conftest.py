"""A folder on the path for packages of strangers, and commands of drkit that see them."""

import pytest

from drkit.core.registry import installed
from tests.plugins.packages import forget, path_with
from tests.warm import drkit


@pytest.fixture
def site(tmp_path, monkeypatch):
    installed()  # kept for the process: without the packages of this test
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget(tmp_path)


@pytest.fixture
def command(site):
    """(exit code, standard output, standard error) of a command in a process that has the packages of `site`."""
    return lambda *arguments: drkit(*arguments, PYTHONPATH=path_with(site))
