"""The table of names is what the documentation says, and what a spec is checked against."""

from pathlib import Path

import pytest

from drkit.core import protocols
from drkit.core.compose import check
from drkit.core.discovery import installed
from drkit.core.layers import ComposeRequest, compose
from drkit.core.provided import CAPABILITIES, PROVIDED
from drkit.errors import ProblemsError

PAGE = (Path(__file__).parents[2] / "docs/reference/protocols.md").read_text(encoding="utf-8")


def test_the_page_lists_every_name():
    for name in PROVIDED:
        assert f"| `{name.name}` | {name.source} | {name.meaning} |" in PAGE
    for name, meaning in CAPABILITIES.items():
        assert f"| `{name}` | {meaning} |" in PAGE


def test_the_page_lists_every_optional_protocol():
    beside = {"LmHeads", "Replacer", "Corpus", "SignalTexts"}
    named = {n for n, value in vars(protocols).items() if getattr(value, "_is_protocol", False)} - {"Protocol"} - beside
    assert not {name for name in named if f"`{name}`" not in PAGE}
