"""Every `drkit compose` on the pages of papers is composed and checked, without a run; other commands are parsed."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest
from attrs import evolve

from drkit.core.registry import installed
from drkit.errors import DrkitError
from drkit.evaluate.measures import check_measures
from drkit.recipe.check import check
from drkit.recipe.compose import compose
from drkit_cli.main import cli
from tests.cli.asked import request_of

PAGES = Path(__file__).parents[2] / "docs" / "papers"
PARTS = installed()
TABLED = ("retromae", "simlm", "cpdae", "cdmae", "query-as-context")


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def lines_of(name: str) -> list[str]:
    """The commands in a page's blocks, without comments."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", page(name), flags=re.DOTALL | re.MULTILINE))
    lines = (line.partition("  #")[0].strip() for line in blocks.replace("\\\n", " ").splitlines())
    return [line.removeprefix("drkit compose") for line in lines if line.startswith("drkit compose ")]


def rows_of(name: str) -> list[str]:
    """The rows of a page's table, each with the options that all rows have."""
    (base,) = re.findall(r"Every row is `drkit compose ([^`]+)`", page(name))
    options = re.findall(r"^\|[^|]+\| `(--[^`]+)` \|", page(name), flags=re.MULTILINE)
    return [f"{base.replace('COLLECTION', 'beir:FOLDER')} {row}" for row in options]


def composed(options: str):
    return compose(request_of(shlex.split(options)), PARTS)


@pytest.mark.parametrize(
    "options",
    [
        *(line for path in sorted(PAGES.glob("*.md")) for line in lines_of(path.stem)),
        *(row for name in TABLED for row in rows_of(name)),
    ],
)
def test_a_command_composes_a_recipe_that_works(options):
    check(composed(options), PARTS.registry)


def other_commands() -> list[str]:
    text = "\n".join(page(path.stem) for path in sorted(PAGES.glob("*.md")))
    found = re.findall(r"^drkit (.+)$|`drkit ([^`]+)`", text.replace("\\\n", " "), flags=re.MULTILINE)
    return [*dict.fromkeys(line for pair in found for line in pair if line and not line.startswith("compose"))]


@pytest.mark.parametrize("line", other_commands())
def test_another_command_has_the_options_and_measures_of_the_page(line):
    words, found = shlex.split(line), cli
    while isinstance(found, click.Group):
        found = found.get_command(click.Context(found), words.pop(0))
    assert {word for word in words if word.startswith("-")} <= {name for one in found.params for name in one.opts}
    check_measures([name for flag, value in pairwise(words) if flag == "-m" for name in value.split()])


def test_benchmarks_on_the_pages_exist():
    named = {name for one in TABLED for name in re.findall(r"`python (\S+\.py)", page(one))}
    assert named
    assert [name for name in named if not (PAGES.parents[1] / name).is_file()] == []


def works(options: str) -> bool:
    try:
        check(composed(options), PARTS.registry)
    except DrkitError:
        return False
    return True


@pytest.mark.parametrize("name", TABLED)
def test_other_readings_are_settings_of_a_recipe_of_the_page(name):
    recipes = dict.fromkeys(re.findall(r"--paper ([\w-]+)", page(name)))
    settings = re.findall(r"`(--set [^`]+)`", page(name))
    assert settings
    assert [
        one for one in settings if not any(works(f"--scale paper --paper {recipe} {one}") for recipe in recipes)
    ] == []


@pytest.mark.parametrize("name", TABLED)
def test_no_two_rows_of_a_table_are_the_same_recipe(name):
    rows = rows_of(name)
    assert len(rows) > 5
    recipes = [evolve(composed(row), name="x") for row in rows]
    assert [row for n, row in enumerate(rows) if recipes[n] in recipes[:n]] == []
