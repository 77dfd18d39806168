"""The filter of negatives on the page about plugins, as a stranger's package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drkit.core.registry import installed
from drkit.miners import mine
from drkit.plugin import MiningRequest
from drkit.testing import check_filter
from drkit.testing.toys import ToyCorpus
from tests.plugins.packages import forget, path_with, write_package

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "plugins.md"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The page's package is installed."""
    site = tmp_path_factory.mktemp("site")
    section = PAGE.read_text(encoding="utf-8").partition("## A filter of negatives")[2]
    declaration, code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    write_package(site, "answers", declaration.replace("my_package.answers", "answers_code"), head="")
    (site / "answers_code.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", path_with(site))
        installed.cache_clear()
        yield
        forget(site)
    installed.cache_clear()


def test_it_keeps_the_contract_of_filters(answers):
    check_filter("answers")


def test_it_drops_passages_with_the_words_of_the_query(answers):
    requests = [MiningRequest("q1", "topic3 passage", positives=frozenset())]
    (found,) = mine(ToyCorpus(), requests, ["bm25", "answers"])
    assert {"d2", "d3"}.isdisjoint(found.doc_ids)
    assert found.dropped["answers"] >= 1
