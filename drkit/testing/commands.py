"""The contract of commands: each is a click command with help, and its module imports nothing slow."""

from __future__ import annotations

import click
from click.testing import CliRunner

from drkit.core.registry import installed
from drkit.testing.specs import loaded_by, require, running


def check_command(name: str) -> None:
    """Run the contract of commands on an installed command of a plugin.

    Its target is a click command with a help text, `--help` prints it, and its module imports neither torch nor other
    packages that take seconds. The command itself is not called.
    """
    declared = installed().extensions["command"].get(name)
    with running(name, f"importing {declared.target}"):
        command = declared.load()
    require(isinstance(command, click.Command), f"{name}: {declared.target} is not a click command")
    require(command.help, f"{name}: the command has no help; write a docstring")
    with running(name, "--help"):
        done = CliRunner().invoke(command, ["--help"], prog_name=f"drkit {name}", catch_exceptions=False)
    require(done.exit_code == 0, f"{name}: --help ends with exit code {done.exit_code}")
    module = declared.target.partition(":")[0]
    loaded = loaded_by(module)
    require(not loaded, f"{name}: importing {module} imports {', '.join(loaded)}; import them inside the command")
