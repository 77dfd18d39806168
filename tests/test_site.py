"""The documentation builds as a site, without a network and without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drkit.core.registry import installed
from drkit.recipe.compose import ComposeRequest, compose

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built from a copy, as its builder writes beside its configuration."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "site"


def test_every_page_is_in_the_navigation_and_built(site):
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert listed == pages
    for page in pages:
        assert (site / page.replace("README.md", "index.md")).with_suffix(".html").is_file()


def test_links_to_headings_exist(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r'href="([\w./-]*)#([\w.%-]+)"', text):
            other = (path.parent / target).resolve() if target else path
            if other.suffix == ".html" and other.is_file():
                assert f'id="{anchor}"' in other.read_text(encoding="utf-8"), f"{path.name}: {target}#{anchor}"


def test_examples_of_docstrings_are_code(site):
    pages = [*(site / "reference" / "api").glob("*.html")]
    assert len(pages) > 10
    assert [page.name for page in pages if "<blockquote>" in page.read_text(encoding="utf-8")] == []


def test_no_page_loads_anything_from_elsewhere(site):
    loads = re.compile(
        r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*rel="stylesheet"[^>]*href="(?:https?:)?//'
    )
    for path in site.rglob("*.html"):
        assert not loads.search(path.read_text(encoding="utf-8")), path


def test_settings_named_in_troubleshooting_exist():
    text = (ROOT / "docs" / "guide" / "troubleshooting.md").read_text(encoding="utf-8")
    settings = re.findall(r"--set ([\w.]+=[\w.-]+)`", text)
    assert len(settings) > 5
    for setting in settings:
        compose(ComposeRequest(collection="beir:FOLDER", settings=(setting,)), installed())


# Ratio of luminances (WCAG 2) of every visible text and the colour behind it; those below 4.5 are returned.
PALE = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = parts(getComputedStyle(one).backgroundColor);
      if (found.length === 3) return found;
    }
    return [255, 255, 255];
  };
  const ratio = (element) => {
    const paper = behind(element), ink = parts(getComputedStyle(element).color), alpha = ink[3] ?? 1;
    const [a, b] = [luminance(ink.slice(0, 3).map((v, i) => v * alpha + paper[i] * (1 - alpha))), luminance(paper)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const says = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")]
    .filter((one) => says(one) && one.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
    .filter((one) => /^rgb/.test(getComputedStyle(one).color) && ratio(one) < 4.5)
    .map((one) => `${one.textContent.trim().slice(0, 40)}: ${ratio(one).toFixed(2)}`);
}"""


@pytest.mark.parametrize(("scheme", "theme"), [("light", "default"), ("dark", "slate")])
def test_pages_are_readable_in_a_browser(site, scheme, theme):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra `browser`)")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not chromium:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1300, "height": 900})
        for name in ("index", "guide/plugins", "papers/retromae", "reference/parts"):
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_selector(f"body[data-md-color-scheme={theme}]")
            assert page.locator("h1").is_visible()
            assert page.evaluate(PALE) == []
            page.set_viewport_size({"width": 400, "height": 900})
            assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), name
            page.set_viewport_size({"width": 1300, "height": 900})
        browser.close()


def test_examples_use_public_members_only():
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for snippet in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            assert re.findall(r"\b(?!self\._)\w+\._[a-z]\w*", snippet) == [], path


def test_every_page_keeps_words_of_code_whole_and_shows_that_a_table_goes_on(site):
    style = (site / "site.css").read_text(encoding="utf-8")
    assert re.search(r"code \{ word-break: normal", style)
    assert re.search(r"scrollwrap \{.*no-repeat local", style, re.DOTALL)
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "site.css" in text, path
        assert "site.js" in text, path
