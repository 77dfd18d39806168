"""A folder on the path for packages of strangers."""

import pytest

from drkit.core.registry import installed
from tests.plugins.packages import forget


@pytest.fixture
def site(tmp_path, monkeypatch):
    installed()  # kept for the process: without the packages of this test
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    forget(tmp_path)
