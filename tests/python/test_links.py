"""Links of the README and of docs/ lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^()\s]+)\)|\b(?:href|src|srcset)=\"([^\"]+)\"")
SHELVES = ("examples", "guide", "reference", "papers", "experiments")


def prose(page: Path) -> str:
    """Return the page without code blocks, where brackets are not links."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    return [first or second for first, second in LINK.findall(prose(page))]


def broken(page: Path) -> list[str]:
    """Return the relative links of a page whose file or heading does not exist."""
    found = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page):
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        '# One: two, three\n[a](#one-two-three) [b](#one) [c](none.md) [d](https://x.org)\n<img src="e.png">'
    )
    assert broken(page) == ["#one", "none.md", "e.png"]


def test_every_page_is_on_a_shelf_and_in_the_index():
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} - {"README.md"}
    assert {page.partition("/")[0] for page in pages} == set(SHELVES)
    listed = set(links(docs / "README.md"))
    generated = {f"reference/{link}" for link in links(docs / "reference" / "api.md") if "#" not in link}
    assert pages <= listed | generated


def test_pages_named_in_the_code_exist():
    named = set()
    for folder in ("drkit", "cli", "plugins", "benchmarks"):
        for source in (ROOT / folder).rglob("*.py"):
            named |= set(re.findall(r"docs/[\w/-]+\.(?:md|toml)", source.read_text(encoding="utf-8")))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
