"""Help texts: they fit a terminal of 80 columns, every option is explained, and examples are valid."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from drkit_cli.main import cli
from tests.cli.test_examples import help_examples
from tests.cli.test_output import COMMANDS

PATHS = [(), ("inspect",), *COMMANDS]


def found(path):
    command = cli
    for name in path:
        command = command.get_command(click.Context(command), name)
    return command


def help_of(path):
    context = click.Context(found(path), info_name=" ".join(("drkit", *path)), terminal_width=80, max_content_width=80)
    return context.get_help()


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_fits_eighty_columns(path):
    shown = help_of(path)
    assert max(map(len, shown.splitlines())) <= 80
    assert not re.search(r"x<=?\d{6}|INTEGER RANGE", shown), "bounds that say nothing"
    lines = shown.replace("Usage:", "").splitlines()
    assert not [line for line in lines if re.search(r"\w\.\.\.$", line)], "cut"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_is_explained(path):
    options = [param for param in COMMANDS[path].params if isinstance(param, click.Option)]
    assert not [option.name for option in options if not (option.help or option.hidden)]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_of_help_are_valid(path):
    for line in help_examples(COMMANDS[path]):
        words = shlex.split(line)
        arguments = words[words.index("drkit_cli.main") + 1 :] if words[0] == "torchrun" else words[1:]
        assert tuple(arguments[: len(path)]) == path
        COMMANDS[path].make_context(" ".join(path), arguments[len(path) :])


def test_the_options_of_compose_have_headings():
    headings = re.findall(r"^(\w.*):$", help_of(("compose",)), re.MULTILINE)
    assert headings == ["Parts", "Recipe", "Data", "Run", "Output"]
    grouped = [name for names in COMMANDS["compose",].groups.values() for name in names]
    assert sorted(grouped) == sorted(param.name for param in COMMANDS["compose",].params)
