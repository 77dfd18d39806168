"""The contracts of what a package declares besides parts: commands and recipes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click
from click.testing import CliRunner

from drkit.core.registry import installed
from drkit.recipe.check import check
from drkit.recipe.compose import ComposeRequest, compose
from drkit.recipe.toml import read_recipe, write_recipe
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


def check_recipe(name: str) -> None:
    """Run the contract of recipes on an installed recipe, as `drkit compose --paper NAME` composes it.

    Its parts and settings exist and are valid, the parts go together, at every scale and as a smoke run, and what is
    written to a file is the same recipe when it is read again. Texts and models are not read.
    """
    here = installed()
    for scale in ("paper", "small", "quick"):
        with TemporaryDirectory() as folder, running(name, f"composing it with --scale {scale}"):
            recipe = compose(ComposeRequest(paper=name, scale=scale), here)
            check(recipe, here.registry)
            write_recipe(recipe, Path(folder) / "recipe.toml")
            read = read_recipe(Path(folder) / "recipe.toml", here.registry)
            require(read == recipe, f"{name}: the recipe changes when it is written to a file and read again")
