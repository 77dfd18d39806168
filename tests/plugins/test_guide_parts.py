"""The source of queries and the stage on the page about plugins, as a stranger's packages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from drkit.core.registry import installed
from drkit.data import read_queries
from drkit.data.stage_context import StageContext
from drkit.testing import check_queries, check_stage
from tests.plugins.packages import forget, path_with, write_package

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "plugins.md"


def blocks(section, language):
    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The page's packages are installed."""
    site = tmp_path_factory.mktemp("site")
    (queries,) = blocks("Queries of your own", "python")
    declaration, code = blocks("A stage of your own", "python")
    write_package(site, "first-words", queries, head="")
    write_package(site, "shorter", declaration, head="")
    (site / "shorter_code.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", path_with(site))
        installed.cache_clear()
        yield
        forget(site)
    installed.cache_clear()


def test_they_keep_their_contracts(parts, tmp_path):
    made = tmp_path / "queries.jsonl"
    made.write_text('{"doc_id": "d1", "query": "a short one"}\n{"doc_id": "d1", "query": "' + "long " * 20 + '"}\n')
    check_queries("first-words")
    assert {*check_stage("shorter", outputs={"stage:ask/queries.jsonl": made})} == {"queries.jsonl"}
    spec = installed().registry.get("stage", "shorter")
    context = StageContext("shorter", spec.config(queries=str(made)), {}, tmp_path / "out", installed().registry)
    context.folder.mkdir()
    assert spec.load()(context) == {"read": 2}
    assert [query for _, query in read_queries(tmp_path / "out" / "queries.jsonl")] == ["a short one"]


def test_the_recipes_are_toml():
    for section, count in (("Queries of your own", 1), ("A stage of your own", 1)):
        found = blocks(section, "toml")
        assert len(found) == count
        assert all(tomllib.loads(text)["pseudo_queries"]["sources"] for text in found)
