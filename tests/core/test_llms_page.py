"""docs/llms.txt lists every page once."""

from __future__ import annotations

from tests.core.llms_page import DOCS, PAGE, listed, page


def test_it_is_written_from_the_pages():
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.core.llms_page"


def test_every_page_is_listed_once():
    # docs/README.md is the title; examples/README.md lists pages that are listed themselves.
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"README.md", "examples/README.md"}
    notebooks = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.ipynb")}
    assert sorted(listed()) == sorted(pages | notebooks)
