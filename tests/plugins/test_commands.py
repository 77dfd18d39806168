"""Commands of plugins: called, listed, and broken ones that leave the others alone."""

import pytest

from tests.plugins.packages import write_package
from tests.refusals import says

COMMANDS = """
import click
from drkit.plugin import DrkitError, Extension

@click.command()
@click.argument("path")
def shout(path):
    "Print PATH in capitals."
    if path == "nothing":
        raise DrkitError("there is nothing to say")
    click.echo(path.upper())

NOT_A_COMMAND = "text"

@hookimpl
def drkit_commands():
    return [
        Extension("shout", "stranger:shout", "Prints in capitals"),
        Extension("status", "stranger:shout", "Prints in capitals"),
        Extension("lost", "stranger.no_such_module:shout", "Is not there"),
        Extension("text", "stranger:NOT_A_COMMAND", "Is a text"),
    ]
"""


@pytest.fixture
def with_stranger(site, command):
    write_package(site, "stranger", COMMANDS)
    return command


def test_a_command_of_a_stranger_is_called_and_its_errors_are_lines(with_stranger):
    assert with_stranger("shout", "aloud") == (0, "ALOUD\n", "")
    assert with_stranger("shout", "nothing") == (2, "", "error: there is nothing to say\n")


def test_drkits_own_command_keeps_its_name(with_stranger):
    code, out, _ = with_stranger("status", "--help")
    assert code == 0
    assert "in capitals" not in out
    _, out, _ = with_stranger("plugins")
    assert says(out, "command 'status'", "stranger 1.0", "drkit's own")


@pytest.mark.parametrize(("name", "reason"), [("lost", "ModuleNotFoundError"), ("text", "click")])
def test_a_broken_command_says_why_and_leaves_the_others(name, reason, with_stranger):
    code, out, err = with_stranger(name, "--any", "value")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert all(part in err for part in (repr(name), "stranger 1.0", reason))
    code, out, _ = with_stranger("--help")
    assert code == 0
    assert all(f"  {command} " in out for command in ("run", "shout", "report", name))


def test_an_unknown_command_names_the_closest_and_what_was_not_loaded(site, command):
    write_package(site, "failing", "raise RuntimeError('theirs')")
    code, out, err = command("serv")
    assert (code, out) == (2, "")
    assert "'serve'" in err
    assert "failing (RuntimeError: theirs)" in err
