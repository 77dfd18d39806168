"""README and changelog name only what exists: each feature is a part, a setting, a command, a file or code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import click
import pytest

from drkit.core.registry import installed
from drkit.core.spec import Kind
from drkit.recipe.schema import Recipe
from drkit_cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md"]
CODE = ("drkit/**/*.py", "cli/**/*.py", "plugins/**/*.py", "plugins/**/*.toml", "drkit/**/*.toml", "pyproject.toml")
# Words with a capital letter beside the features: a licence and headings.
NOT_FEATURES = {"Apache", "Changelog", "Safety"}


def prose(path):
    """A page without blocks of code and addresses of links."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)


@cache
def code():
    return "\n".join(path.read_text(encoding="utf-8") for pattern in CODE for path in ROOT.glob(pattern))


@cache
def words_of_the_code():
    return {word.lower() for word in re.findall(r"[^\W_]+", code())}


@cache
def names():
    """Everything that a back-quoted name may be: parts, recipes, pipelines, architectures, commands and options."""
    parts = installed()
    found = {name for kind in Kind for name in parts.registry.names(kind)}
    found |= {*parts.recipes, *parts.pipelines, *map(str, Kind)}
    found |= {*(one for table in parts.extensions.values() for one in table)}
    waiting: list[click.Command] = [cli]
    while waiting:
        command = waiting.pop()
        found |= {option for parameter in command.params for option in parameter.opts}
        if isinstance(command, click.Group):
            found |= {*command.commands, *(f"drkit {name}" for name in command.commands)}
            waiting += command.commands.values()
    return found


def has_setting(path, cls: Any = Recipe):
    """Whether a dotted path leads to a setting of a recipe; the names of decoders and losses are free."""
    first, _, rest = path.partition(".")
    hints = get_type_hints(cls) if attrs.has(cls) else {}
    if first not in hints:
        return False
    inner = [one for one in (hints[first], *get_args(hints[first])) if attrs.has(one)]
    if rest and "." not in rest and dict in map(get_origin, (hints[first], *get_args(hints[first]))):
        return True  # a name that the recipe gives
    return not rest or any(has_setting(rest, one) or has_setting(rest.partition(".")[2], one) for one in inner)


def is_setting(name):
    name = name.strip("[]").partition(" =")[0].partition("=")[0]
    tables = [hint for hint in get_type_hints(Recipe).values() for hint in (hint, *get_args(hint)) if attrs.has(hint)]
    return has_setting(name) or any(name in attrs.fields_dict(table) for table in tables)


def is_in_the_code(name):
    """Whether each word of a name, such as of a class or a function with its arguments, occurs in code."""
    return {word.lower() for word in re.findall(r"[^\W_]+", name)} <= words_of_the_code()


def is_a_word_of_protocols(name):
    """Whether code has a name as a text of its own, such as what parts provide."""
    return f'"{name}"' in code()


def exists(name):
    """Whether a back-quoted name is something of the project, or occurs in its code."""
    first = re.split(r"[ =@(\[]", name)[0]
    is_command = name.startswith("drkit ") and " ".join(name.split()[:2]) in names()
    is_part = all(one in names() or one.isupper() for one in name.split(":"))  # with what it composes
    if is_command or is_part or first in names() or is_setting(name) or (ROOT / name).exists():
        return True
    if re.fullmatch("[0-9a-f]{8}", name) or is_a_word_of_protocols(name):  # the public API's hash has a test of its own
        return True
    if name.partition(".")[0] in get_type_hints(Recipe):
        return False  # it looks like a setting
    looks_like_code = re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\)| = .*)?", name) and not name.endswith(".md")
    is_a_name = "." in name or "_" in name or name != name.lower()
    return bool(looks_like_code) and is_a_name and is_in_the_code(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_quoted_name_exists(page):
    quoted = {*re.findall(r"`([^`]+)`", prose(page))}
    assert quoted
    assert sorted(name for name in quoted if not exists(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_feature_with_a_name_of_its_own_occurs_in_the_code(page):
    # LoRA, OpenVINO, Ray, GPU, BM25, SimLM, Matryoshka, ..: words with a capital letter.
    named = {*re.findall(r"\b[^\W_]*[A-Z][^\W_]*\b", re.sub(r"`[^`]+`", "", prose(page)))} - NOT_FEATURES
    assert len(named) > 20
    assert sorted(word for word in named if word.lower() not in words_of_the_code()) == []


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        *((name, True) for name in ("pmi", "gpl", "drkit study", "--decoder", "encoder.passages_per_document")),
        *((name, True) for name in ("CONTRIBUTING.md", "finetune.baselines", "drkit.compose", "CachedGradients")),
        *(
            (name, False)
            for name in ("qlora", "encoder.lora_rank", "drkit quantise", "--adapter", "LoraEncoder", "no.md")
        ),
    ],
)
def test_what_exists_is_told_from_what_does_not(name, is_there):
    assert exists(name) is is_there


def test_the_table_of_where_to_add_what_names_files_and_the_code_in_them():
    page = (ROOT / "docs" / "reference" / "architecture.md").read_text(encoding="utf-8")
    rows = page.split("## Where to add what")[1].split("\n## ")[0].split("|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert len(rows) == 7
    for row in rows:
        quoted = re.findall(r"`([^`]+)`", row)
        paths = [ROOT / "drkit" / name for name in quoted if name.endswith(".py")]
        assert len(paths) >= 2, row
        assert [path for path in paths if not path.is_file()] == []
        text = "\n".join(path.read_text(encoding="utf-8") for path in paths)
        words = {*re.findall(r"\w+", text)}
        assert [name for name in quoted if not name.endswith(".py") and name not in words] == [], row
