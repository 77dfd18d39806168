from __future__ import annotations

import pytest

from tests.parts.toys import toy_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return toy_tokenizer()
