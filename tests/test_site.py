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
    for name in ("docs", "drkit", "cli", "plugins"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
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
    """Also in pages that the builder does not check: those that mkdocstrings writes."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for target, anchor in re.findall(r'href="([\w./-]*)#([\w.%-]+)"', text):
            other = (path.parent / target).resolve() if target else path
            if other.suffix == ".html" and other.is_file():
                assert f'id="{anchor}"' in other.read_text(encoding="utf-8"), f"{path.name}: {target}#{anchor}"


def test_examples_of_docstrings_are_code(site):
    assert "<blockquote>" not in (site / "reference" / "api.html").read_text(encoding="utf-8")


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
